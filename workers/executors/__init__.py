"""How a worker runs its attempts: in threads, as coroutines, or in processes. The worker knows only the interface.

Nothing is imported here: the template of the child processes loads this package before Django is set up.
"""
