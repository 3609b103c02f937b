"""Tests, importable as `tests.…`."""
