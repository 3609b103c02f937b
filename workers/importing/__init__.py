"""Schedules of other schedulers: read, held against what they would mean here, reported, and created on request."""
