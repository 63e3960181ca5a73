"""Tests of the loading of agents and the watching of their files."""
