"""Tests of whole processes: hubs, agents and supervisors, started, stopped and killed."""
