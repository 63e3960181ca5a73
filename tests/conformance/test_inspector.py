"""The Inspector's command line lists, reads and calls what an agent has, on HTTP and on stdio."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from scripts.conformance import FOLDER
from scripts.npm_packages import NODE
from tests.conformance.conftest import AGENT, ENDPOINTS
from tests.requirements import requirement

INSPECTOR = FOLDER / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
WITHIN_S = 240
AT_ONCE = 2
# "legacy" is what it speaks unless told otherwise
ERAS = {"agent": ("legacy", "modern"), "hub": ("legacy",), "stdio": ("legacy",)}
TEXT = "This is the content of the static text resource."


@dataclass(frozen=True)
class Target:
    """A server as the Inspector is told of it."""

    arguments: tuple[str, ...]
    home: Path
    eras: tuple[str, ...]

    def ask(self, era: str, *asked: tuple[str, ...]) -> list[Any]:
        """The results of requests (method, arguments …), each by a process and a connection of its own."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda one: self._ask(era, *one), asked))

    def _ask(self, era: str, method: str, *arguments: str) -> Any:
        options = ("--protocol-era", era, "--format", "json", "--quiet", "--method", method)
        patience = ("--connect-timeout", "60000")
        done = subprocess.run(
            [str(NODE / "node"), str(INSPECTOR), "--cli", *self.arguments, *patience, *options, *arguments],
            # the Inspector keeps a catalogue in the home folder
            env={**os.environ, "HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        found = orjson.loads(done.stdout)
        return found.get("result", found)


@pytest.fixture(scope="module", params=list(ERAS))
def target(
    request: pytest.FixtureRequest, suites: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    folder, eras = tmp_path_factory.mktemp("inspector"), ERAS[request.param]
    if request.param == "stdio":
        serve = (sys.executable, "-m", "retinue", "serve", str(AGENT), "--stdio")
        # of the environment it hands on little more than PATH and HOME
        yield Target((*serve, "-e", f"RETINUE_HOME={folder / 'state'}"), folder, eras)
        return
    with ENDPOINTS[request.param](folder) as url:
        yield Target((url, "--transport", "http"), folder, eras)


def names(listed: list[dict[str, Any]]) -> set[str]:
    return {one["name"] for one in listed}


@pytest.mark.timeout(600)
@requirement("S-02")
@requirement("S-16")
def test_the_inspector_lists_and_calls_tools(target: Target) -> None:
    for era in target.eras:
        given = ("--tool-arg", "contactMethod=email", "email=a@example.org")
        listed, called, mixed = target.ask(
            era,
            ("tools/list",),
            ("tools/call", "--tool-name", "json_schema_2020_12_tool", *given),
            ("tools/call", "--tool-name", "test_multiple_content_types"),
        )
        expected = {"test_simple_text", "test_multiple_content_types", "json_schema_2020_12_tool"}
        assert expected <= names(listed["tools"])
        assert called["content"] == [{"type": "text", "text": "given: contactMethod, email"}]
        assert [block["type"] for block in mixed["content"]] == ["text", "image", "resource"]


@pytest.mark.timeout(600)
@requirement("S-02")
@requirement("S-16")
def test_the_inspector_lists_and_reads_resources(target: Target) -> None:
    for era in target.eras:
        resources, templates, text, data = target.ask(
            era,
            ("resources/list",),
            ("resources/templates/list",),
            ("resources/read", "--uri", "test://static-text"),
            ("resources/read", "--uri", "test://template/7/data"),
        )
        uris = {one["uri"] for one in resources["resources"]}
        assert uris == {"test://static-text", "test://static-binary", "test://watched-resource"}
        assert [one["uriTemplate"] for one in templates["resourceTemplates"]] == ["test://template/{id}/data"]
        assert [one["text"] for one in text["contents"]] == [TEXT]
        assert orjson.loads(data["contents"][0]["text"])["data"] == "Data for ID: 7"


@pytest.mark.timeout(600)
@requirement("S-16")
def test_the_inspector_lists_and_gets_prompts(target: Target) -> None:
    for era in target.eras:
        arguments = ("--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=one", "arg2=two")
        listed, got = target.ask(era, ("prompts/list",), ("prompts/get", *arguments))
        assert {"test_simple_prompt", "test_prompt_with_arguments"} <= names(listed["prompts"])
        (message,) = got["messages"]
        assert message["role"] == "user"
        assert message["content"]["text"] == "Prompt with arguments: arg1='one', arg2='two'"
