"""The A2A endpoint: dispatches JSON-RPC requests as calls and keeps them as tasks."""
