"""Shared parts of HTTP endpoints: security, errors, tokens, the HTTP client."""
