"""Where transitions, queries and policies meet. Each function owns its transaction, except submit."""
