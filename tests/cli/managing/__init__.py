"""Tests of the commands that set up and look after a mesh."""
