"""Drawings of the pages, made by the server: shapes, steps of runs, time lines and the map of calls."""
