"""The dashboard: pages of the hub for browsers, rendered by the hub, updated by server-sent events."""
