"""A client of A2A in bytes: requests of 1.x and 0.3, and the events of a stream."""

from __future__ import annotations

import itertools
from typing import Any

import orjson

from tests.system import Reply, Wire

_ids = itertools.count(1)


def text_part(text: str) -> dict[str, Any]:
    return {"text": text}


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """A message of the user; a string is a text part."""
    read = [text_part(part) if isinstance(part, str) else part for part in parts]
    return {"messageId": f"message-{next(_ids)}", "role": "ROLE_USER", "parts": read, **fields}


def naming(skill: str, **arguments: Any) -> dict[str, Any]:
    """The data part that names a skill and its arguments."""
    return {"data": {"skill": skill, "arguments": arguments}}


def find_facts(data: Any) -> Any:
    """The facts in the ``data`` of an error; A2A 0.3 has them without a list around them."""
    if not isinstance(data, list):
        return data
    structs = (one for one in data if one["@type"] == "type.googleapis.com/google.protobuf.Struct")
    return next((one["value"] for one in structs), None)


async def ask(wire: Wire, url: str, method: str, params: Any, **headers: str) -> Reply:
    """One request; of 1.x unless its method is of 0.3."""
    version = {} if "/" in method else {"a2a-version": "1.0"}
    body = {"jsonrpc": "2.0", "id": "r1", "method": method, "params": params}
    return await wire.post(url, body, **{**version, **headers})


async def send(wire: Wire, url: str, *parts: Any, **fields: Any) -> Any:
    """The result of ``SendMessage``."""
    reply = await ask(wire, url, "SendMessage", {"message": message(*parts, **fields)})
    return reply.result


async def call(wire: Wire, url: str, skill: str, /, **arguments: Any) -> Any:
    """The task of a call."""
    return (await send(wire, url, naming(skill, **arguments)))["task"]


def read_events(body: bytes) -> list[Any]:
    """The results in a stream, in order."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [orjson.loads(line)["result"] for line in lines]


def parts_of(task: Any) -> list[Any]:
    """The parts of all artifacts of a task."""
    return [part for artifact in task.get("artifacts", ()) for part in artifact["parts"]]


def state_of(task: Any) -> str:
    return str(task["status"]["state"])
