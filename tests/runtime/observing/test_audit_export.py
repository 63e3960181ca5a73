"""The export of audit rows: JSON lines, full files renamed, a disk that takes nothing for a while."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.core.errors import InvalidSettingError
from retinue.runtime.observing.audit_export import AuditExport


def read(path: Path) -> list[int]:
    return [orjson.loads(line)["n"] for line in path.read_bytes().splitlines()]


def read_all(folder: Path) -> dict[str, list[int]]:
    return {path.name: read(path) for path in folder.iterdir()}


async def test_rows_are_lines_of_json_and_full_files_are_renamed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    export = AuditExport(path, file_bytes=20, files=3)
    for batch in ([0, 1, 2], [3], [4, 5, 6, 7], [8, 9, 10], [11]):
        for number in batch:
            export.append({"n": number})
        export.flush()
    assert read_all(tmp_path) == {
        "audit.jsonl": [11],
        "audit.jsonl.1": [8, 9, 10],
        "audit.jsonl.2": [3, 4, 5, 6, 7],
    }
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_another_program_renamed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    export = AuditExport(path, file_bytes=1_000, files=3)
    export.append({"n": 1})
    export.flush()
    path.rename(tmp_path / "yesterday")
    export.append({"n": 2})
    export.flush()
    assert (read(tmp_path / "yesterday"), read(path)) == ([1], [2])


async def test_rows_wait_while_the_file_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "audits"
    folder.mkdir()
    export = AuditExport(folder / "audit.jsonl", file_bytes=1_000, files=3)
    folder.rename(tmp_path / "away")
    for number in (1, 2):
        export.append({"n": number})
        export.flush()
    folder.mkdir()
    export.append({"n": 3})
    export.flush()
    assert read(folder / "audit.jsonl") == [1, 2, 3]


def test_a_file_that_cannot_be_opened_is_told_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=r"audit\.export"):
        AuditExport(tmp_path / "nowhere" / "audit.jsonl", file_bytes=1_000, files=3)
