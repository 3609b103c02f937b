"""The REST API: parse, authorize, call one function, serialize."""
