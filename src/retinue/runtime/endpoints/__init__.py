"""The endpoints of a process: services, routes and cards, put together for each protocol."""
