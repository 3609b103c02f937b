"""Screens for the people who answer for jobs: plain server-rendered pages that work without script."""
