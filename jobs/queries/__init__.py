"""Reads only: what may be claimed, what happened, what waits."""
