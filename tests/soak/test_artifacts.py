"""A file of a gigabyte goes through hub, agent and commands, whose memory does not grow with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.test_artifacts_process import assert_bounded, check_memory


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_gigabyte_takes_no_more_memory_than_a_small_file(tmp_path: Path) -> None:
    grown = check_memory(tmp_path, 1024)
    print({name: round(megabytes) for name, megabytes in grown.items()})
    assert_bounded(grown)
