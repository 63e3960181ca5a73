"""Seed 004 as test material: its JSON blocks, and the agent ``openstarry-coder`` that they describe."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import orjson
import pyjson5

from retinue.runtime.loading.targets import Target, load_target

FOLDER = Path(__file__).parent / "004"
BLOCKS = ("initialize.jsonc", "exposure.jsonc", "request.json", "response.json")
"""The seed's JSON blocks in the order of its text, each a file of the folder ``004``."""

README = "# Project Readme..."

PLUGINS = '''
from pathlib import Path

from retinue import Agent

agent = Agent("plugins")


@agent.skill("fs:read_file")
async def read_file(path: str) -> str:
    """Reads a file of the project."""
    return (Path(__file__).parent / path).read_text()


@agent.skill("git:status")
async def status() -> str:
    """Says what changed."""
    return "clean"


@agent.skill("admin:reset")
async def reset() -> str:
    """Forgets everything."""
    return "gone"


@agent.skill("fs:write_file")
async def write_file(path: str, text: str) -> str:
    """Writes a file of the project."""
    return "written"


@agent.resource("openstarry://workspace")
async def workspace() -> str:
    """Where the project lies."""
    return "/workspace"
'''


def read_block(name: str) -> bytes:
    """One JSON block, byte for byte as the seed has it."""
    return (FOLDER / name).read_bytes()


def load_block(name: str) -> Any:
    """A block as JSON, without its comments; a fragment becomes an object."""
    text = read_block(name).decode()
    return pyjson5.decode(text if name != "exposure.jsonc" else "{" + text + "}")


def list_blocks(text: str) -> list[bytes]:
    """The JSON blocks of a seed's text, without the indentation of the list they stand in."""
    found = re.findall(r"^ *```json\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [(textwrap.dedent(block).strip("\n") + "\n").encode() for block in found]


def read_seeds() -> list[str]:
    """The seed's own text, where it lies beside the project."""
    folder = Path(__file__).parents[3] / "shared" / "seeds"
    return [path.read_text("utf-8") for path in sorted(folder.glob("004_*.txt"))]


def write_coder(folder: Path, **mcp: Any) -> Path:
    """The seed's agent in a folder: its plugins, a README, and an ``agent.json`` with this ``mcp`` block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(README)
    (folder / "plugins.py").write_text(PLUGINS)
    facts = {"name": "openstarry-coder", "version": "1.0.0", "entry": "plugins.py:agent", **mcp}
    file = folder / "agent.json"
    file.write_bytes(orjson.dumps(facts))
    return file


def load_coder(folder: Path, **mcp: Any) -> Target:
    """The seed's agent as ``retinue serve agent.json`` loads it."""
    return load_target(str(write_coder(folder, **mcp)))
