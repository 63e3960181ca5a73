"""The orchestration tools of the hub (seed 002): choice, execution, cache and conversations."""
