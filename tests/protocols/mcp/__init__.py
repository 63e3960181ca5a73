"""The codecs of MCP."""
