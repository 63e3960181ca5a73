"""The tutorial is one session: its files are written, its commands typed, its outputs compared."""

from __future__ import annotations

from tests.docs.sessions.test_guides import play
from tests.docs.shell import Shell


def test_the_tutorial_runs_from_the_first_agent_to_the_first_client(shell: Shell) -> None:
    assert play("tutorial.md", shell) == 4
