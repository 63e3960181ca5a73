"""Pure: names that every MCP client takes, made of the names that authors gave (SPEC 6, "Tool names").

Claude, Codex and Copilot refuse a whole session for one name outside ``^[A-Za-z0-9_-]{1,64}$``, and
seed 004 writes ``fs:read_file``. So lists show aliases, and a call may use either spelling.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

MAX_LENGTH = 64
AGENT_MARK = "__"
"""Between agent and skill in the name of another agent's tool."""

Names = Literal["safe", "seed"]
"""Which spelling a list shows: aliases, or the authors' own (setting ``mcp.names``)."""

_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_HASH_LENGTH = 8


def safe_names(ids: Iterable[str]) -> dict[str, str]:
    """An alias for each id: unique, safe, the same whatever the order of the ids.

    A safe id keeps its name. Any other has its characters replaced by ``_``; where that is taken, too
    long or empty, it is cut and ends in a hash of the id.
    """
    known = dict.fromkeys(ids)
    safe = {one for one in known if is_safe(one)}
    folded = {one: _UNSAFE.sub("_", one) for one in known if one not in safe}
    wanted = Counter(folded.values())
    taken = set(safe)
    aliases: dict[str, str] = {}
    hashed: list[str] = []
    for one in known:
        if one in safe:
            aliases[one] = one
        elif is_safe(folded[one]) and wanted[folded[one]] == 1 and folded[one] not in safe:
            aliases[one] = folded[one]
            taken.add(folded[one])
        else:
            hashed.append(one)
    for one in sorted(hashed):
        aliases[one] = _hashed(one, taken)
        taken.add(aliases[one])
    return {one: aliases[one] for one in known}


def is_safe(name: str) -> bool:
    """Whether every known client takes this name as it is."""
    return _SAFE.fullmatch(name) is not None


def list_spellings(agent: str | None, skill: str) -> tuple[str, ...]:
    """What a caller may write for this tool besides its alias (SPEC 6: ``helpful-agent.calculate``)."""
    if agent is None:
        return (skill,)
    return (f"{agent}{AGENT_MARK}{skill}", f"{agent}.{skill}")


def tool_id(agent: str | None, skill: str) -> str:
    """The name that the alias is made of: ``<agent>__<skill>`` for a tool of another agent."""
    return skill if agent is None else f"{agent}{AGENT_MARK}{skill}"


def _hashed(one: str, taken: set[str]) -> str:
    digest = sha256(one.encode("utf-8", "surrogatepass")).hexdigest()
    stem = _UNSAFE.sub("_", one)[: MAX_LENGTH - 1 - _HASH_LENGTH]
    for length in range(_HASH_LENGTH, len(digest)):
        alias = f"{stem[: MAX_LENGTH - 1 - length]}_{digest[:length]}"
        if alias not in taken:
            return alias
    return digest[:MAX_LENGTH]
