"""The only code that writes Job.status, due entries, leases and events: one function per transition."""
