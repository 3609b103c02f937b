"""The whole product in one terminal: database, web, scheduler, worker, and a shop that uses them."""
