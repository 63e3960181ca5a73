"""The kinds of processes."""

from __future__ import annotations

Kind = str
"""hub, agent, worker, stdio (an agent on standard input and output), command (without a hub), or another.

Other distributions have kinds of their own. The last two of the core serve nothing.
"""
