"""Fixtures of the crash tests: databases, and nodes that never outlive their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.node import Plan
from tests.crash.postgres import Postgres
from tests.crash.processes import Node

Start = Callable[[Plan], Node]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts nodes, and ends them with the test."""
    nodes: list[Node] = []

    def start_node(plan: Plan) -> Node:
        nodes.append(Node(plan))
        return nodes[-1]

    yield start_node
    for node in nodes:
        node.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server of these tests."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.crash)],
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The url of an empty database; on Postgres in ``make crash`` only."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database()
