"""The shop's Django app: handlers a worker discovers, and the calls they make to the provider."""
