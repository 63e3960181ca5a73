"""The public names: few, sorted, importable, and cheap until they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import retinue

HEAVY = ("pydantic", "aiohttp", "starlette", "jsonschema_rs", "ruamel", "asyncio")


def test_the_public_names_are_sorted_and_at_most_fifteen() -> None:
    """DESIGN 2: what stands here is an interface that stays fixed."""
    assert retinue.__all__ == sorted(retinue.__all__)
    assert len(set(retinue.__all__)) == len(retinue.__all__) <= 15


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
