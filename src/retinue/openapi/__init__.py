"""Imports HTTP APIs with OpenAPI documents as skills."""
