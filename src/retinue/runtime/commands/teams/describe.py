"""A program that prints what an agent offers: ``python -m retinue.runtime.commands.teams.describe TARGET``.

It runs in a process and in an environment of its own, because loading an agent executes its code.
"""

from __future__ import annotations

import os
import sys

import orjson

from retinue.core.errors import RetinueError
from retinue.runtime.loading.targets import load_target


def main() -> int:
    """Print name, version and skills as one line of JSON, or the error of the agent with status 1."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the agent prints is no result
    try:
        record = load_target(sys.argv[1]).agent.record("http://127.0.0.1:1")
        skills = [
            {
                "id": skill.id,
                "description": skill.description or "",
                "input_schema": skill.input_schema,
                "output_schema": skill.output_schema,
            }
            for skill in record.skills
            if skill.visibility != "private"
        ]
        reply = {"name": record.name, "version": record.version, "skills": skills}
    except RetinueError as error:
        reply = {"error": error.message, "remedy": error.remedy}
    results.write(orjson.dumps(reply) + b"\n")
    results.flush()
    return 1 if "error" in reply else 0


if __name__ == "__main__":
    sys.exit(main())
