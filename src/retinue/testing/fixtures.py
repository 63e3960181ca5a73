"""pytest fixtures for tests of agents; use them with ``pytest_plugins = ["retinue.testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retinue.testing.scripted_caller import ScriptedCaller
from retinue.testing.scripted_peer import ScriptedPeer, scripted_peer


@pytest.fixture
def script_caller() -> Iterator[Callable[..., ScriptedCaller]]:
    """Make a `ScriptedCaller`; the test fails when answers of its lists are left over, or were missing."""
    made: list[ScriptedCaller] = []

    def make(*answers: Any, **options: Any) -> ScriptedCaller:
        made.append(ScriptedCaller(*answers, **options))
        return made[-1]

    yield make
    left = [answer for caller in made for answer in caller.unused]
    assert not left, f"never asked for: {left}"
    missing = [question for caller in made for question in caller.unscripted]
    assert not missing, f"nothing is scripted for: {missing}"


@pytest.fixture
def script_peer() -> Callable[..., ScriptedPeer]:
    """Make a peer whose skills answer as scripted, for ``peers=[…]``; see `scripted_peer`."""
    return scripted_peer
