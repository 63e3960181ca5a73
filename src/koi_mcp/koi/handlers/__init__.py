"""Handlers of the pipeline."""
