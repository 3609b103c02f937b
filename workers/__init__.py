"""The processes: loops, signals, threads. They move jobs only through jobs.services and jobs.transitions."""
