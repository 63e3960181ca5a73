"""Keeps large results of a step ``think`` as artifacts, and answers the calls of the tool ``read_result``.

What the model reads is recorded below the path of the turn, at ``/read``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from retinue.core.call import Outcome
from retinue.core.errors import RetinueError
from retinue.mesh.artifacts import Artifact, ArtifactStore
from retinue.thinking.completion import ToolCall, ToolResult
from retinue.thinking.large_results import cut_value, is_large, write_text
from retinue.thinking.read_tool import (
    READ_RESULT,
    KnownLinks,
    Reading,
    ReadPart,
    cut_piece,
    parse_reading,
    render_part,
)
from retinue.thinking.results import refuse
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.runs.records import as_json

READ_S = 60.0

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"

_NOT_TEXT = "it is no text in UTF-8"


async def keep_result(frame: Frame, skill: str, outcome: Outcome, keep_bytes: int) -> Outcome:
    """The recorded part of a call's outcome: the beginning and a link if the result is large."""
    value = outcome.value
    if not is_large(value, keep_bytes):
        return outcome
    # in a thread, because it may have many megabytes
    text = await asyncio.to_thread(write_text, value)
    link, problem = None, ""
    if (store := frame.tools.artifacts) is not None:
        try:
            artifact = await _save(store, frame, skill, text, is_json=not isinstance(value, str))
            link = artifact.to_json()
        except RetinueError as error:
            # the call was made: its result is not lost with the artifact
            problem = f"the rest could not be kept: {error.message}"
    cut = await asyncio.to_thread(cut_value, value, text, keep_bytes, link, problem)
    return replace(outcome, value=cut)


async def _save(store: ArtifactStore, frame: Frame, skill: str, text: str, *, is_json: bool) -> Artifact:
    content = await asyncio.to_thread(text.encode, "utf-8", "replace")
    return await store.save(
        content,
        _JSON if is_json else _TEXT,
        caller=frame.caller,
        name=f"{skill}.{'json' if is_json else 'txt'}",
        run=frame.context.run_id.partition("/")[0],
    )


async def read_results(
    frame: Frame, links: KnownLinks, calls: Sequence[ToolCall], turn: str, keep_bytes: int
) -> list[ToolResult]:
    """The results of calls of ``read_result``; what they read is recorded."""
    readings = [
        parse_reading(call.arguments, links, keep_bytes)
        if isinstance(call.arguments, Mapping)
        else "The arguments are no JSON object."
        for call in calls
    ]

    async def effect() -> Any:
        rows: list[Any] = []
        for call, reading in zip(calls, readings, strict=True):
            part = reading if isinstance(reading, str) else await _read(frame.tools.artifacts, reading)
            rows.append({"call": call.id, **({"problem": part} if isinstance(part, str) else as_json(part))})
        return {"parts": rows}

    what = "; ".join(_describe(call) for call in calls)
    facts = {"kind": "read", "message": what[:200], "below": ""}
    outcome = await frame.context.step(f"{turn}/read", effect, timeout_s=READ_S, facts=facts)
    if outcome.fault is not None:
        return [refuse(call, f"It cannot be read: {outcome.fault.message}") for call in calls]
    return [_render(call, row) for call, row in zip(calls, outcome.value["parts"], strict=True)]


def _render(call: ToolCall, row: Mapping[str, Any]) -> ToolResult:
    if "problem" in row:
        return refuse(call, str(row["problem"]))
    return render_part(call, ReadPart(row["place"], row["text"]))


def _describe(call: ToolCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return " ".join(f"{key}={str(value)[:40]}" for key, value in arguments.items()) or READ_RESULT


async def _read(store: ArtifactStore | None, reading: Reading) -> ReadPart | str:
    """A part of an artifact, or why it cannot be read."""
    if store is None:
        return "It cannot be read: this process keeps no artifacts."
    try:
        size = (await store.find(reading.digest)).size or 0
        if reading.first is not None:
            return await _read_lines(store, reading, reading.first, size)
        return await _read_bytes(store, reading, size)
    except UnicodeDecodeError:
        return f"It cannot be read: {_NOT_TEXT}."
    except RetinueError as error:
        return f"It cannot be read: {error.message}"


async def _read_bytes(store: ArtifactStore, reading: Reading, size: int) -> ReadPart | str:
    if reading.offset >= size:
        return f"The offset {reading.offset:,} is not below its size of {size:,} bytes."
    end = min(reading.offset + reading.length, size)
    content = bytearray()
    async with aclosing(store.open(reading.digest, reading.offset, end)) as pieces:
        async for piece in pieces:
            content += piece
    text, start, end = cut_piece(bytes(content), reading.offset, size)
    rest = f"; go on with offset {end}" if end < size else ""
    return ReadPart(f"bytes {start:,} to {end:,} of {size:,}{rest}", text)


async def _read_lines(store: ArtifactStore, reading: Reading, first: int, size: int) -> ReadPart | str:
    """The lines, as many of them as fit; a line that is longer than that is read by its bytes."""
    number, at, start = 1, 0, None
    content = bytearray()
    async with aclosing(store.open(reading.digest)) as pieces:
        async for piece in pieces:
            place = 0
            if number < first:
                place, number = _skip_lines(piece, number, first)
            if number >= first and place < len(piece):
                start = at + place if start is None else start
                content += piece[place:]
            at += len(piece)
            if len(content) > reading.length or content.count(b"\n") > reading.last - first:
                break
    if start is None:
        return f"It has only {min(number, first - 1):,} lines."
    lines = bytes(content).split(b"\n")[: reading.last - first + 1]
    fitting: list[bytes] = []
    length = 0
    for line in lines:
        length += len(line) + 1
        if length > reading.length + 1:
            break
        fitting.append(line)
    if not fitting:
        return f"Line {first:,} has more than {reading.length:,} bytes: read it with offset {start}."
    last = first + len(fitting) - 1
    part = b"\n".join(fitting)
    if start + len(part) >= size:
        note = f"lines {first:,} to {last:,}, which is the end"
    else:
        note = f"lines {first:,} to {last:,}, from byte {start:,} of {size:,}"
    if len(fitting) < len(lines):
        note += f"; go on with lines {last + 1}-{reading.last}"
    return ReadPart(note, part.decode())


def _skip_lines(piece: bytes, number: int, first: int) -> tuple[int, int]:
    """Where line ``first`` begins in a piece that begins in line ``number``, and the line at that place."""
    place = 0
    while number < first:
        end = piece.find(b"\n", place)
        if end < 0:
            return len(piece), number
        place, number = end + 1, number + 1
    return place, number
