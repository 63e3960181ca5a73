"""Calls the function of ``@agent.can``: the author's own answer to a capability query."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from retinue.authoring.context import Context
from retinue.authoring.signatures import call_in_thread, read_signature
from retinue.core.errors import InvalidSettingError
from retinue.core.json_values import name_shape
from retinue.mesh.asking.query import Can

_log = structlog.get_logger("retinue.can")


class Judgement:
    """One function, asked for each capability; raises InvalidSettingError for a function that cannot be."""

    def __init__(self, function: Callable[..., Any]) -> None:
        signature = read_signature(function, "can", reads_result=False)
        if len(signature.names) != 1:
            raise InvalidSettingError(
                "can",
                f"the function has {len(signature.names)} parameters besides the context",
                remedy="write def can(capability: str, ctx: Context), or without ctx",
            )
        self._function = function
        self._signature = signature
        (self._parameter,) = signature.names.values()

    async def ask(
        self, capabilities: Sequence[str], context: Context, agent: str
    ) -> Mapping[str, Can] | None:
        """The function's statement on each capability; None where it failed, which is logged and never the
        caller's.
        """
        try:
            return {
                capability: _read(await self._ask_one(capability, context)) for capability in capabilities
            }
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the record still answers
            _log.warning("can failed", agent=agent, error=f"{type(error).__name__}: {error}")
            return None

    async def _ask_one(self, wanted: str, context: Context) -> Any:
        bound = self._signature.bind({self._parameter: wanted}, context)
        if self._signature.is_async:
            return await self._function(**bound)
        value = await asyncio.to_thread(call_in_thread, self._function, **bound)
        return await value if inspect.isawaitable(value) else value


def _read(value: Any) -> Can:
    if isinstance(value, Can):
        return value
    if value is None or isinstance(value, bool):
        return Can(yes=value)
    raise InvalidSettingError(
        "can", f"it returned {name_shape(value)}", remedy="return True, False, None or Can(...)"
    )
