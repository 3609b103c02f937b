"""A Django app for process tests: handlers that leave a trace, and stop or go on when a test says so."""
