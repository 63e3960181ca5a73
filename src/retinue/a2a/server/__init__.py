"""The A2A endpoint: JSON-RPC requests to dispatched calls, which are kept as tasks."""
