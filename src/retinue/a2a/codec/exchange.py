"""Pure codec of the calling side of A2A, versions 1.x and 0.3: renders calls, reads replies.

A message names the skill in its metadata, and for agents that publish schemas its arguments in a data part
``{"skill": …, "arguments": {…}}``. To others it is a text and a part with ``data``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.core.call import Part
from retinue.core.errors import RemoteFaultError
from retinue.core.record import Skill
from retinue.web.codec.trace import WARNINGS_KEY

Json = Mapping[str, Any]

VERSION_HEADER = "A2A-Version"

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
WAITING = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})

MAX_ARTIFACTS = 1_000
MAX_PARTS = 10_000
MAX_WARNINGS, MAX_WARNING = 10, 500

_METHODS_OF_03 = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
}
_PREFIX = "TASK_STATE_"
_EXACT = 2**53

PROMPT_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "description": "The request, in words"},
        "data": {"description": "Structured data to send with it"},
    },
    "required": ["prompt"],
    "additionalProperties": False,
}
"""The input of a skill of an agent that publishes no schemas."""


def method_of(method: str, version: str) -> str:
    """The name of a method in this version."""
    return _METHODS_OF_03[method] if version == "0.3" else method


def render_call(
    skill: Skill, arguments: Any, version: str, trace: Json, *, has_schema: bool
) -> dict[str, Any]:
    """The parameters of SendMessage for a call; ``trace`` goes into the metadata of the message."""
    if has_schema:
        parts = [_data_part({"skill": skill.id, "arguments": arguments}, version)]
    else:
        fields = arguments if isinstance(arguments, Mapping) else {"prompt": str(arguments)}
        parts = [_text_part(str(fields.get("prompt", "")), version)]
        if fields.get("data") is not None:
            parts.append(_data_part(fields["data"], version))
    return _message(parts, version, {"skill": skill.id, **trace})


def without_waiting(params: Json, version: str) -> dict[str, Any]:
    """The parameters of SendMessage, answered as soon as there is a task, because with its id it can be
    cancelled.
    """
    choice = {"blocking": False} if version == "0.3" else {"returnImmediately": True}
    return {**params, "configuration": {**params.get("configuration", {}), **choice}}


def render_answer(answer: Any, task: TaskState, version: str, trace: Json) -> dict[str, Any]:
    """The parameters of SendMessage for the answer to a question of a task."""
    is_text = isinstance(answer, str)
    part = _text_part(answer, version) if is_text else _data_part(answer, version)
    return _message([part], version, trace, {"taskId": task.id, "contextId": task.context_id})


def _message(
    parts: list[dict[str, Any]], version: str, metadata: Json, place: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    is_old = version == "0.3"
    message: dict[str, Any] = {
        "messageId": str(uuid.uuid4()),
        "role": "user" if is_old else "ROLE_USER",
        "parts": parts,
        "metadata": dict(metadata),
        **{key: value for key, value in (place or {}).items() if value},
    }
    if is_old:
        message["kind"] = "message"
        return {"message": message, "configuration": {"blocking": True}}
    return {"message": message, "configuration": {}}


def _text_part(text: str, version: str) -> dict[str, Any]:
    return {"kind": "text", "text": text} if version == "0.3" else {"text": text}


def _data_part(data: Any, version: str) -> dict[str, Any]:
    if version == "0.3":
        # data of 0.3 is an object
        return {"kind": "data", "data": data if isinstance(data, Mapping) else {"value": data}}
    return {"data": data}


@dataclass(slots=True)
class TaskState:
    """The state of a task, or of a message in reply, after the events so far.

    ``state`` is that of A2A without its prefix, "" while unknown and COMPLETED for a message.
    """

    id: str | None = None
    context_id: str | None = None
    state: str = ""
    status_parts: list[Json] = field(default_factory=list)
    status_metadata: Json = field(default_factory=dict)
    artifacts: dict[str, list[Json]] = field(default_factory=dict)
    metadata: Json = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether it needs its client: an answer, or a login."""
        return self.state in WAITING

    @property
    def text(self) -> str:
        """The text of the last status."""
        return "\n".join(str(part["text"]) for part in self.status_parts if part.get("text") is not None)

    def take(self, event: Any, agent: str) -> bool:
        """Apply one reply or one event of a stream, of either version; True if it reports progress.

        Raises RemoteFaultError for any other reply.
        """
        if not isinstance(event, Mapping):
            raise _malformed(agent, "its reply is no object")
        kind = event.get("kind")
        if kind == "task" or isinstance(event.get("task"), Mapping):
            self._take_task(event["task"] if isinstance(event.get("task"), Mapping) else event)
            return False
        if kind == "message" or isinstance(event.get("message"), Mapping):
            message = event["message"] if isinstance(event.get("message"), Mapping) else event
            self.state, self.artifacts = "COMPLETED", {"message": _parts_of(message)}
            self.context_id = _text(message.get("contextId")) or self.context_id
            self.metadata = _object(message.get("metadata"))
            return False
        if kind == "status-update" or isinstance(event.get("statusUpdate"), Mapping):
            update = event["statusUpdate"] if isinstance(event.get("statusUpdate"), Mapping) else event
            self._place(update.get("taskId"), update)
            self._take_status(update.get("status"))
            self.metadata = {**self.metadata, **_object(update.get("metadata"))}
            return not self.has_ended and not self.is_waiting
        if kind == "artifact-update" or isinstance(event.get("artifactUpdate"), Mapping):
            update = event["artifactUpdate"] if isinstance(event.get("artifactUpdate"), Mapping) else event
            self._place(update.get("taskId"), update)
            self._take_artifact(_object(update.get("artifact")), append=update.get("append") is True)
            return False
        if "status" in event and "id" in event:
            self._take_task(event)
            return False
        raise _malformed(agent, "its reply is neither a task nor a message")

    def list_results(self) -> list[list[Json]]:
        """The parts of each artifact, else those of the last status."""
        return [parts for parts in self.artifacts.values() if parts] or [self.status_parts]

    def _place(self, task_id: Any, source: Json) -> None:
        self.id = _text(task_id) or self.id
        self.context_id = _text(source.get("contextId")) or self.context_id

    def _take_task(self, task: Json) -> None:
        self._place(task.get("id"), task)
        self._take_status(task.get("status"))
        self.metadata = {**self.metadata, **_object(task.get("metadata"))}
        artifacts = task.get("artifacts")
        if isinstance(artifacts, list) and artifacts:
            self.artifacts = {}
            for artifact in artifacts[:MAX_ARTIFACTS]:
                self._take_artifact(_object(artifact), append=False)

    def _take_status(self, status: Any) -> None:
        status = _object(status)
        self.state = _state(status.get("state"))
        message = _object(status.get("message"))
        self.status_parts, self.status_metadata = _parts_of(message), _object(message.get("metadata"))

    def _take_artifact(self, artifact: Json, *, append: bool) -> None:
        key = _text(artifact.get("artifactId")) or str(len(self.artifacts))
        parts = _parts_of(artifact)
        if append:
            parts = _continued(self.artifacts.get(key, []), parts)
        if len(self.artifacts) < MAX_ARTIFACTS or key in self.artifacts:
            self.artifacts[key] = parts[:MAX_PARTS]


def _continued(parts: list[Json], chunk: list[Json]) -> list[Json]:
    """The parts of an artifact with a chunk of a stream; its text continues the text before it."""
    if parts and chunk and _is_plain_text(parts[-1]) and _is_plain_text(chunk[0]):
        text = f"{parts[-1]['text']}{chunk[0]['text']}"
        return [*parts[:-1], {**parts[-1], "text": text}, *chunk[1:]]
    return [*parts, *chunk]


def _is_plain_text(part: Json) -> bool:
    return isinstance(part.get("text"), str)


def read_result(results: Sequence[Sequence[Json]], *, has_schema: bool) -> tuple[Any, tuple[Part, ...]]:
    """The value and the further content of a result, which are the parts of each of its artifacts.

    Of an agent that publishes schemas the last text or data is the value. Of others the value is its text, or
    its data, or an object with both. The texts of one artifact are joined as they are, because an agent may
    write a text in several parts; those of two artifacts by a newline. Files are content.
    """
    parts = [part for artifact in results for part in artifact]
    values = [part for part in parts if part.get("text") is not None or "data" in part]
    files = tuple(_file(part) for part in parts if "raw" in part or "url" in part)
    if has_schema and values:
        *before, last = values
        return _value(last), (*(_as_part(part) for part in before), *files)
    written = [[str(p["text"]) for p in artifact if p.get("text") is not None] for artifact in results]
    texts = ["".join(chunks) for chunks in written if chunks]
    data = [_value(part) for part in values if part.get("text") is None]
    if not data:
        return ("\n".join(texts) if texts else None), files
    value = data[0] if len(data) == 1 else data
    return ({"text": "\n".join(texts), "data": value} if texts else value), files


def read_warnings(metadata: Json) -> tuple[str, ...]:
    """The warnings of an agent of ours."""
    listed = metadata.get(WARNINGS_KEY)
    warnings = (
        [warning[:MAX_WARNING] for warning in listed if isinstance(warning, str)]
        if isinstance(listed, list)
        else []
    )
    return tuple(warnings[:MAX_WARNINGS])


def find_question(task: TaskState) -> tuple[str, Json, bool]:
    """The question of a waiting task, the schema of its answer, and whether the answer is a plain text."""
    schema = task.status_metadata.get("schema")
    if isinstance(schema, Mapping):
        return task.text or "It asks for input.", whole_numbers(schema), False
    return (
        task.text or "It asks for input.",
        {
            "type": "object",
            "properties": {"answer": {"type": "string", "title": "Answer"}},
            "required": ["answer"],
        },
        True,
    )


def whole_numbers(value: Any) -> Any:
    """The value with whole floats as integers: protobuf writes every number as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: whole_numbers(inner) for key, inner in value.items()}
    return [whole_numbers(inner) for inner in value] if isinstance(value, list) else value


def _value(part: Json) -> Any:
    return part["text"] if part.get("text") is not None else whole_numbers(part.get("data"))


def _as_part(part: Json) -> Part:
    if part.get("text") is not None:
        return Part.text(str(part["text"]))
    return Part("data", whole_numbers(part.get("data")), "application/json")


def _file(part: Json) -> Part:
    mime = _text(part.get("mediaType")) or "application/octet-stream"
    name = _text(part.get("filename"))
    if "raw" not in part:
        return Part("resource", {"uri": str(part.get("url"))}, mime, name)
    family = mime.partition("/")[0]
    kind: Literal["image", "audio", "file"] = (
        "image" if family == "image" else "audio" if family == "audio" else "file"
    )
    return Part(kind, str(part["raw"]), mime, name)


def _parts_of(source: Json) -> list[Json]:
    """The parts in the form of 1.x."""
    listed = source.get("parts")
    parts: list[Json] = []
    for part in listed[:MAX_PARTS] if isinstance(listed, list) else ():
        if not isinstance(part, Mapping):
            continue
        file = part.get("file")
        if isinstance(file, Mapping):
            renamed = {"raw": file.get("bytes"), "url": file.get("uri"), "mediaType": file.get("mimeType")}
            part = {**renamed, "filename": file.get("name")}
            part = {key: value for key, value in part.items() if value is not None}
        elif part.get("kind") == "data" and _is_wrapped(part.get("data")):
            part = {"data": part["data"]["value"]}
        parts.append(part)
    return parts


def _is_wrapped(data: Any) -> bool:
    # a value that is no object, as 0.3 can carry it
    return isinstance(data, Mapping) and data.keys() == {"value"}


def _state(value: Any) -> str:
    return str(value or "").removeprefix(_PREFIX).upper().replace("-", "_")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _malformed(agent: str, problem: str) -> RemoteFaultError:
    return RemoteFaultError(agent, -32006, f"agent {agent}: {problem}")
