"""Durable intent: jobs, their calendar, their owners and their history."""
