"""Answers MCP requests without the SDK's layers; docs/performance.md says when each file can go."""
