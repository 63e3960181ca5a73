"""The distributions of this repository, built once for all tests of this folder."""

from __future__ import annotations

import pytest

from scripts import release
from scripts.get_uv import UvNotFoundError
from scripts.release import Built


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    try:
        return release.build(tmp_path_factory.mktemp("built") / "dist")
    except UvNotFoundError as error:
        pytest.skip(f"NOT TESTED, because there is no uv: {error}")
