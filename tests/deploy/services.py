"""What the files of ``deploy`` start, as processes of this machine.

A service has the arguments, the environment and the probe that its file names. Names of other services and
ports become addresses of this machine; everything else is used as it is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import urllib3

from retinue.cli.program import program as commands
from retinue.storage.state import State
from tests.crash.postgres import Postgres
from tests.docs.pages import ROOT, table_rows
from tests.processes.running import Program, program, wait_until

DEPLOY = ROOT / "deploy"
PASSWORD = "of-the-database"
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


@dataclass(frozen=True, slots=True)
class Service:
    """A process of Retinue: its arguments behind ``retinue``, its environment, and the URL of its probe.

    ``others`` are addresses ``host:port`` that its arguments and environment name → the real ones.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    probe: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def at(self, others: Mapping[str, str]) -> Service:
        """The same, with real addresses in place of those of the file; the longest names first."""

        def real(text: str) -> str:
            for shown in sorted(others, key=len, reverse=True):
                text = text.replace(shown, others[shown])
            return text

        return replace(
            self,
            arguments=tuple(real(word) for word in self.arguments),
            environment={name: real(value) for name, value in self.environment.items()},
            probe=None if self.probe is None else real(self.probe),
        )

    @contextmanager
    def started(self, folder: Path) -> Iterator[Program]:
        """The process, with its state in a folder of its own."""
        with program(*self.arguments, cwd=folder, environment=self.given(folder)) as started:
            yield started

    def wait(self, process: Program) -> None:
        """Wait until its probe says that it is ready."""
        wait_until(lambda: process.process.poll() is not None or self.is_ready(), self.name, limit_s=180)
        assert process.process.poll() is None, process.output

    def given(self, folder: Path) -> dict[str, str]:
        """The environment of the process."""
        return {**self.environment, "RETINUE_HOME": str(self.state(folder).root)}

    def state(self, folder: Path) -> State:
        return State(folder / self.name)

    def is_ready(self) -> bool:
        assert self.probe is not None
        try:
            reply = _http.request("GET", self.probe)
        except urllib3.exceptions.HTTPError:
            return False
        return reply.status == 200

    def type(self, folder: Path, *arguments: str) -> str:
        """What a command prints that is run beside the process, in the same container."""
        done = subprocess.run(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=folder,
            env={**os.environ, **self.given(folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def check_options(arguments: Sequence[str]) -> None:
    """Raise click.UsageError unless the program takes these arguments."""
    name, *rest = arguments
    with commands.make_context("retinue", [name]) as context:
        command = commands.get_command(context, name)
        assert command is not None, name
        command.make_context(name, rest, parent=context)


def list_unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables of Retinue that ``docs/settings.md`` does not name."""
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    named = [row[1] for row in table_rows(page, "setting")] + [
        row[0] for row in table_rows(page, "environment")
    ]
    known = [re.compile(name.strip("`").replace("__NAME__", "__[A-Z0-9_]+__")) for name in named]
    return [
        name
        for name in environment
        if name.startswith("RETINUE_") and not any(one.fullmatch(name) for one in known)
    ]


def image_environment() -> dict[str, str]:
    """The variables that the image sets for the processes in it."""
    text = (DEPLOY / "container" / "Containerfile").read_text("utf-8").replace("\\\n", "")
    last = text.rpartition("\nFROM ")[2]
    (line,) = re.findall(r"^ENV (.*)$", last, re.MULTILINE)
    return {
        name: value
        for name, _, value in (word.partition("=") for word in line.split())
        if name.startswith("RETINUE_")
    }


@contextmanager
def postgres_with_password() -> Iterator[str]:
    """An empty database ``retinue`` whose owner ``retinue`` needs PASSWORD; its URL without it."""
    server = Postgres()
    try:
        url = server.create_owned_database("retinue", PASSWORD)
        yield url
    finally:
        server.close()


def count_nodes(hub_url: str, token: str) -> float:
    """How many processes execute runs, as the hub's metrics tell."""
    reply = _http.request("GET", f"{hub_url}/metrics", headers={"authorization": f"Bearer {token}"})
    found = re.search(r"^retinue_nodes (\S+)$", reply.data.decode(), re.MULTILINE)
    return float(found[1]) if found else 0


FLOW = """
name: one-plan
steps:
  - {id: plan, skill: create_plan, with: {requirements: write tests for textwrap}}
output: {plan: "${{ steps.plan.output.plan }}"}
"""
"""A workflow whose step is run by the agent that the files start as an example."""
