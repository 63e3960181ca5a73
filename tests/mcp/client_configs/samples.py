"""Configurations as people have them: comments, trailing commas, other servers, line ends, marks."""

from __future__ import annotations

ZED = """\
// Zed settings
//
// For information on how to configure Zed, see the Zed documentation.
{
  "agent": {
    "default_model": { "provider": "zed.dev", "model": "claude" }, // the good one
  },
  "context_servers": {
    // "old": { "command": "gone" },
    "postgres": {
      "source": "custom",
      "command": "postgres-mcp",
      "args": ["--url", "postgres://localhost/bücher"], /* local */
      "env": {},
    },
  },
  "buffer_font_size": 15,
  /* the end */
}
"""

VSCODE = """\
{
\t"inputs": [
\t\t{ "type": "promptString", "id": "key", "password": true }
\t],
\t"servers": {
\t\t"github": {
\t\t\t"type": "http",
\t\t\t"url": "https://api.githubcopilot.com/mcp/"
\t\t} // signed in by the editor
\t}
}
"""

CLAUDE = """\
{
  "numStartups": 42,
  "projects": {
    "/home/ada/work": {
      "allowedTools": [],
      "mcpServers": { "local": { "type": "stdio", "command": "x", "args": [] } }
    }
  },
  "mcpServers": {
    "filesystem": {
      "type": "stdio",
      "command": "npx",
      "args": [
        "-y",
        "@modelcontextprotocol/server-filesystem"
      ],
      "env": {}
    }
  },
  "tipsHistory": { "ünïcode": "🤖" }
}"""

CURSOR = '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}\n'
GEMINI = '{\r\n    "theme": "Dracula",\r\n    "selectedAuthType": "gemini-api-key"\r\n}\r\n'
DESKTOP = '\ufeff{\n  "globalShortcut": "Ctrl+Space",\n  "mcpServers": {}\n}\n'

CODEX = '''\
# Codex of Ada
model = "gpt-5.1-codex"  # the default
notify = [
  "notify-send",  # a [header] that is none
  "Codex",
]
motto = """
[mcp_servers.retinue]
is no table here"""

[mcp_servers.docs]
command = "docs-server"
args = ["--dir", 'C:\\docs']
env = { "LANG" = "de" }

# what is trusted
[projects."/home/ada/work"]
trust_level = "trusted"
'''

BY_CLIENT = {
    "claude": CLAUDE,
    "claude-desktop": DESKTOP,
    "cursor": CURSOR,
    "vscode": VSCODE,
    "gemini": GEMINI,
    "codex": CODEX,
    "zed": ZED,
}
