"""A shop that uses Duekeeper: its handlers, its payment provider, its orders and an API client."""
