"""Settings that are read anew: all parts are checked before the first of them changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retinue.core.call import ANONYMOUS
from retinue.core.errors import InvalidSettingError, NotAuthenticatedError
from retinue.parts.part import LivePart
from retinue.parts.process import Tables
from retinue.runtime.launch import Address, tables_of
from retinue.runtime.loading.configuration import ConfigurationReload, endpoint_part
from retinue.settings import Settings
from retinue.settings_tables import TraceTable
from retinue.web.security import PathExceptions, SecurityMiddleware


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not called")


def settings_of(**tables: Any) -> Settings:
    return Settings.model_validate(tables)


def test_a_reachable_process_refuses_to_stop_requiring_tokens() -> None:
    part = endpoint_part(SecurityMiddleware(no_app), Address("0.0.0.0", 0), PathExceptions())
    with pytest.raises(InvalidSettingError, match="no token is required"):
        part.prepare(tables_of(settings_of(auth={"anonymous": True})))
    part.prepare(tables_of(settings_of(auth={"anonymous": False})))


async def test_paths_of_parts_stay_open_when_settings_are_read_anew() -> None:
    exceptions = PathExceptions(frozenset({"/open"}), ("/pages/",), ("/files/",))
    checks = SecurityMiddleware(no_app)
    endpoint_part(checks, Address("127.0.0.1", 0), exceptions).prepare(
        tables_of(settings_of(auth={"anonymous": False}))
    )()
    for path in ("/open", "/pages/style.css", "/health"):
        assert await checks.authenticate({}, path) is ANONYMOUS
    for path in ("/open/more", "/files/x"):
        with pytest.raises(NotAuthenticatedError):
            await checks.authenticate({}, path)


def test_no_part_changes_if_one_of_them_refuses_the_settings() -> None:
    applied: list[str] = []
    lines: list[str] = []

    def takes(tables: Tables) -> Callable[[], None]:
        return lambda: applied.append(f"{tables.get(TraceTable).max_depth}")

    def refuses(tables: Tables) -> Callable[[], None]:
        raise InvalidSettingError("doors.hosts", "not these", remedy="others")

    parts = [LivePart(("trace.*",), takes), LivePart(("doors.hosts",), refuses)]
    readings = [
        settings_of(trace={"max_depth": 2}, doors={"hosts": ["a"]}),
        settings_of(trace={"max_depth": 3}, runs={"keep": 7}),
        settings_of(trace={"max_depth": 3}, runs={"keep": 7}),
    ]
    read = ConfigurationReload(settings_of(), lambda: readings.pop(0), parts, lines.append)
    for _ in range(3):
        read()
    assert applied == ["3"]
    assert lines[0].startswith("settings not read: ")
    assert lines[0].endswith("others; the previous ones stay")
    assert lines[1:] == [
        "settings read again; now in force: trace.max_depth; at the next start: runs.keep",
        "settings read again; at the next start: runs.keep",
    ]
