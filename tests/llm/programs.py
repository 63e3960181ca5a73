"""Fake command-line agents: programs on the search path that answer as claude, gemini and codex do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

Program = Literal["claude", "gemini", "codex"]

_SCRIPT = """#!{python} -S
import json, os, sys, time
folder = {folder!r}
prompt = sys.stdin.read()
with open(os.path.join(folder, "calls.jsonl"), "a") as log:
    log.write(json.dumps({{"program": {name!r}, "arguments": sys.argv[1:], "prompt": prompt,
        "folder": os.getcwd(), "files": os.listdir("."), "environ": dict(os.environ), "pid": os.getpid(),
        "group": os.getpgid(0)}}) + "\\n")
{body}
"""


def write_program(folder: Path, name: Program, body: str) -> Path:
    """An executable ``name`` in ``folder``; ``body`` is Python that has ``prompt`` and prints the answer."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(_SCRIPT.format(python=sys.executable, folder=str(folder), name=name, body=body))
    path.chmod(0o755)
    return path


def answer(name: Program, text: str, *, cost_usd: float = 0.01) -> str:
    """The body of a program that answers ``text`` in the format of ``name``."""
    if name == "claude":
        events: list[Any] = [
            {"type": "system", "subtype": "init", "model": "claude-fake"},
            {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}},
            {
                "type": "result",
                "subtype": "success",
                "is_error": False,
                "result": text,
                "total_cost_usd": cost_usd,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5},
            },
        ]
        return _print_lines(events)
    if name == "codex":
        return _print_lines(
            [
                {"type": "thread.started", "thread_id": "t"},
                {"type": "turn.started"},
                {"type": "item.completed", "item": {"type": "reasoning", "text": "let me think"}},
                {"type": "item.completed", "item": {"type": "agent_message", "text": text}},
                {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 5}},
            ]
        )
    tokens = {"prompt": 100, "candidates": 3, "thoughts": 2, "total": 105}
    document = {"response": text, "stats": {"models": {"gemini-fake": {"tokens": tokens}}}}
    return f"print(json.dumps(json.loads({json.dumps(document)!r}), indent=2))"


def read_calls(folder: Path) -> list[dict[str, Any]]:
    """What each call of a program in ``folder`` got."""
    log = folder / "calls.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _print_lines(events: list[Any]) -> str:
    return "\n".join(f"print({json.dumps(event)!r}, flush=True)" for event in events)
