"""Decisions in plain Python: values in, decision out. No Django, no database, no clock of their own."""
