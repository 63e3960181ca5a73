"""The dashboard: pages of the hub for browsers, rendered here and updated by server-sent events."""
