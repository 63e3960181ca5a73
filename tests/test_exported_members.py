"""The public names: few, sorted, importable, and cheap until they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.errors import RemoteFaultError
from retinue.core.remote_faults import rebuild_error

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("pydantic", "aiohttp", "starlette", "jsonschema_rs", "ruamel", "asyncio")


def test_the_public_names_are_sorted_and_at_most_twenty_beside_the_errors() -> None:
    """The exported names are an interface that stays fixed."""
    assert retinue.__all__ == sorted(retinue.__all__)
    assert len(set(retinue.__all__)) == len(retinue.__all__)
    assert len([name for name in retinue.__all__ if not name.endswith("Error")]) <= 20


def test_the_errors_that_a_skill_may_catch_are_public_and_documented() -> None:
    """Those that a further call or a question can raise; the page names each of them."""
    public = {name for name in retinue.__all__ if name.endswith("Error")}
    rebuilt = {type(rebuild_error(RemoteFaultError("a", -1, "m", facts))).__name__ for facts in FACTS}
    assert rebuilt - {"StepFailedError"} <= public
    page = (ROOT / "docs" / "errors.md").read_text("utf-8").partition("## The request")[0]
    assert {name for name in public if f"`{name}`" not in page} == set()


FACTS: list[dict[str, Any]] = [
    {"type": "validation_error", "errors": [{"path": "a", "message": "m"}]},
    {"type": "unknown_skill"},
    {"type": "skill_not_offered", "near": ["b"]},
    {"type": "unknown_agent"},
    {"type": "unknown_artifact"},
    {"type": "quota_exceeded", "limit": 3, "unit": "bytes", "used": 2},
    {"type": "unknown_run"},
    {"type": "run_conflict"},
    {"type": "key_conflict"},
    {"type": "version_conflict", "wanted": "<2", "offered": ["2.0"]},
    {"type": "not_allowed"},
    {"type": "busy", "retry_after_s": 1},
    {"type": "execution_error", "exception": "KeyError"},
    {"type": "output_validation_error", "errors": [{"path": "a", "message": "m"}]},
    {"type": "timeout", "timeout_s": 1, "layer": "skill", "setting": "s"},
    {"type": "cancelled"},
    {"type": "agent_unreachable", "agent": "a", "sent": True},
    {"type": "input_required"},
    {"type": "cannot_ask", "capability": "elicitation"},
    {"type": "input_refused"},
    {"type": "of_their_own"},
]
"""What the wire says of an error of each type."""


@pytest.mark.parametrize("name", retinue.__all__)
def test_each_public_name_can_be_imported_and_is_documented(name: str) -> None:
    """``from retinue import X`` for every X, once and again."""
    found = getattr(retinue, name)
    assert found is getattr(retinue, name)
    assert found.__doc__


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    """What a person sees who looks around in a shell."""
    assert dir(retinue) == retinue.__all__


def test_a_wrong_name_is_said_to_be_wrong() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'retinue' has no attribute 'Agnet'"):
        _ = retinue.Agnet


def test_importing_the_package_imports_nothing_heavy() -> None:
    """The command line answers ``--help`` before anything of this is loaded."""
    code = f"import sys, retinue; print([name for name in {HEAVY!r} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
