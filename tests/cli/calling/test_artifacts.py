"""``retinue artifacts`` without a hub, and against one in this process."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Retinue
from tests.system import System

HELLO = f"sha256:{sha256(b'hello').hexdigest()}"


@pytest.fixture
def hello(retinue: Retinue) -> Path:
    """A file in the folder of the command."""
    path = Path("hello.txt")
    path.write_bytes(b"hello")
    return path


def test_a_file_is_saved_listed_shown_and_fetched(retinue: Retinue, hello: Path) -> None:
    assert "save one" in retinue("artifacts").stderr
    assert retinue("artifacts", "put", "hello.txt").stdout == f"artifact:{HELLO}\n"
    listed = retinue("artifacts")
    assert listed.stdout.splitlines()[1].split("\t")[:4] == [HELLO[7:19], "5 B", "text/plain", "hello.txt"]
    assert "1 artifact, 4.1 kB of" in listed.stderr
    shown = json.loads(retinue("artifacts", "show", HELLO[7:14], "--json").stdout)
    assert (shown["artifact"], shown["callers"], shown["is_held_by_run"]) == (HELLO, ["local"], False)
    Path("out").mkdir()
    assert "saved out/hello.txt" in retinue("artifacts", "get", f"artifact:{HELLO}", "out").stderr
    assert Path("out/hello.txt").read_bytes() == b"hello"
    assert retinue("artifacts", "get", HELLO, "-").stdout == "hello"


def test_standard_input_is_saved_too(retinue: Retinue, hello: Path) -> None:
    saved = retinue(
        "artifacts", "put", "-", "--name", "a.md", "--type", "text/markdown", "--json", stdin="hi"
    )
    assert json.loads(saved.stdout) == {
        "artifact": f"sha256:{sha256(b'hi').hexdigest()}",
        "size": 2,
        "media_type": "text/markdown",
        "name": "a.md",
    }


def test_an_artifact_is_deleted_and_what_nothing_holds_is_collected(retinue: Retinue, hello: Path) -> None:
    retinue("artifacts", "put", "hello.txt")
    assert "deleted artifact:" in retinue("artifacts", "delete", HELLO).stdout
    assert json.loads(retinue("artifacts", "gc", "--json").stdout) == {"count": 0, "bytes": 0}
    gone = retinue("artifacts", "get", HELLO)
    assert gone.exit_code == 3
    assert "Unknown artifact" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("put", "missing.txt"), 2, "cannot be read"),
        (("put", "."), 2, "Is a directory"),
        (("put", "hello.txt", "--type", "text"), 2, "no media type"),
        (("get", "nonsense!"), 2, "no link to an artifact"),
        (("show", "abcdef"), 3, "list them: retinue artifacts --all"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: tuple[str, ...], code: int, said: str, retinue: Retinue, hello: Path
) -> None:
    refused = retinue("artifacts", *arguments)
    assert refused.exit_code == code
    assert said in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


async def test_a_hub_has_the_files_of_its_state(system: System, retinue: Retinue, hello: Path) -> None:
    hub = await system.start_hub()

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(retinue, "artifacts", *arguments, "--hub", hub.url)

    assert (await run("put", "hello.txt")).stdout == f"artifact:{HELLO}\n"
    assert HELLO[7:19] in (await run("--all")).stdout
    assert (await run("get", HELLO[7:19], "-")).stdout == "hello"
    assert HELLO in (await run("show", HELLO)).stdout
    assert json.loads((await run("gc", "--json")).stdout) == {"count": 0, "bytes": 0}
    assert "deleted" in (await run("delete", HELLO, "--all")).stdout
