"""Seed 000 as test material: its JSON blocks, and the agents Jules and Eddy that they describe."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import orjson

from retinue.authoring.agent import Agent

FOLDER = Path(__file__).parent / "000"
BLOCKS = ("query.jsonc", "summary.json", "specific.json")
"""The seed's JSON blocks in the order of its text, each a file of the folder ``000``."""

ACTION = "EXECUTE_DELEGATED_CODING_TASK"
QUERY = "elizaos:ontology:agent/capability_query"
INFORMATION = "elizaos:ontology:agent/capability_information"


def read_block(name: str) -> bytes:
    """One JSON block, byte for byte as the seed has it."""
    return (FOLDER / name).read_bytes()


def load_block(name: str) -> Any:
    """A reply of the seed as JSON."""
    return orjson.loads(read_block(name))


def list_blocks(text: str) -> list[bytes]:
    """The JSON blocks of a seed's text, without the indentation of the list they stand in."""
    found = re.findall(r"^ *```json\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [(textwrap.dedent(block).strip("\n") + "\n").encode() for block in found]


def read_seeds() -> list[str]:
    """The seed's own text, where it lies beside the project."""
    folder = Path(__file__).parents[3] / "shared" / "seeds"
    return [path.read_text("utf-8") for path in sorted(folder.glob("000_*.txt"))]


def read_template(query_type: str) -> dict[str, Any]:
    """The seed's query with the commented lines of one type uncommented (specification 7.1)."""
    lines = read_block("query.jsonc").decode().splitlines()
    section, kept = "", []
    for line in lines:
        if found := re.search(r'// For "(\w+)"', line):
            section = found[1]
        elif "//" in line and "Optional" not in line:
            if section == query_type:
                kept.append(line.replace("// ", "", 1).partition(" // ")[0])
        elif "//" not in line:
            kept.append(line)
    payload: dict[str, Any] = orjson.loads("\n".join(kept))
    return {**payload, "query_type": query_type}


def make_jules() -> Agent:
    """Jules with the seed's topics and its one action, and a private skill that nobody may learn of."""
    shown = load_block("summary.json")["capabilities"]
    jules = Agent("jules", version="1.0.0", topics=shown["topics"], provider="ElizaOS")
    (action,) = shown["actions"]

    @jules.skill(
        action["name"],
        description=action["description"],
        tags=["database_interaction"],
        similes=["FIX_CODE"],
        expose=True,
    )
    async def execute(code_to_debug: str, programming_language: str = "python") -> dict[str, Any]:
        return {"fixed_code": code_to_debug.replace("=>", "="), "language": programming_language}

    @jules.skill("ERASE_EVERYTHING", private=True)
    async def erase() -> str:
        """Erases everything."""
        return "gone"

    return jules
