"""The logic of one call: dispatch, admission, permissions, events; no wire, no socket."""
