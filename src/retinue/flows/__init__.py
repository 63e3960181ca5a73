"""Workflows in Python: functions whose steps are recorded as those of workflows in YAML."""
