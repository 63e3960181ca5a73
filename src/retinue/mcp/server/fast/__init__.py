"""Answers MCP requests without the SDK's layers; docs/performance.md lists when each file can be deleted."""
