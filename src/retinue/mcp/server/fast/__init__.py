"""MCP requests without the SDK's layers, for speed; docs/performance.md says when each file can go."""
