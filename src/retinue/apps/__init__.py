"""Composition roots, nothing else."""
