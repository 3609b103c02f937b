"""Operators' commands, one module a noun: `manage.py dk <noun> <verb>`."""
