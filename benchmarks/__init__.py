"""Measures the product on the machine it stands on: `python -m benchmarks`. Also a Django app, for its handler."""
