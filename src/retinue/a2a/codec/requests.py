"""Pure: reads and checks the parameters of A2A 1.x requests.

Unknown keys are ignored, as A2A requires for later versions. Each error names the field, its shape and the
remedy.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.a2a.codec.faults import A2aError, invalid_parameters
from retinue.core.json_values import name_shape

MAX_ID_LENGTH = 200
MAX_PARTS = 200
MAX_PAGE_SIZE = 100
PAGE_SIZE = 50

UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
"""As a filter: any state."""

CONTENTS = ("text", "raw", "url", "data")
"""The keys of a part, of which it has exactly one."""

STATES = (
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
    UNSPECIFIED,
)
"""The states that A2A has, also those that no task has here."""

_MESSAGE_KEYS = (
    "messageId",
    "contextId",
    "taskId",
    "role",
    "parts",
    "metadata",
    "extensions",
    "referenceTaskIds",
)
_PART_KEYS = (*CONTENTS, "metadata", "filename", "mediaType")
_ROLES = frozenset({"ROLE_USER", "ROLE_AGENT"})


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message as it arrived; ``json`` holds its known keys."""

    id: str
    parts: tuple[Mapping[str, Any], ...]
    json: Mapping[str, Any]
    context_id: str | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PushConfig:
    """The receiver of the updates of a task; ``legacy``: its client uses version 0.3."""

    url: str
    id: str | None = None
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None
    legacy: bool = False


@dataclass(frozen=True, slots=True)
class SendRequest:
    """``SendMessage`` and ``SendStreamingMessage``."""

    message: IncomingMessage
    metadata: Mapping[str, Any]
    history_length: int | None = None
    return_immediately: bool = False
    push: PushConfig | None = None


@dataclass(frozen=True, slots=True)
class ListRequest:
    """``ListTasks``; ``after`` is an RFC 3339 timestamp."""

    context_id: str | None = None
    state: str | None = None
    after: str | None = None
    page_size: int = PAGE_SIZE
    page_token: str = ""
    history_length: int | None = None
    with_artifacts: bool = False


def read_send(params: Any) -> SendRequest:
    """The parameters of ``SendMessage``; raises A2aError, which names the field."""
    fields = _fields(params, "params")
    configuration = _fields(fields.get("configuration") or {}, "configuration")
    push = configuration.get("taskPushNotificationConfig")
    return SendRequest(
        read_message(fields.get("message")),
        _object(fields.get("metadata") or {}, "metadata"),
        _count(configuration, "historyLength"),
        configuration.get("returnImmediately") is True,
        None if push is None else read_push_config(push, "configuration.taskPushNotificationConfig"),
    )


def read_message(value: Any, at: str = "message") -> IncomingMessage:
    """A message, found at ``at``; raises A2aError, which names the field."""
    message = _fields(value, at)
    role = message.get("role")
    if role not in _ROLES:
        raise _invalid(f"{at}.role", role, 'make it "ROLE_USER"')
    parts = message.get("parts")
    if not isinstance(parts, list) or not 0 < len(parts) <= MAX_PARTS:
        raise _invalid(f"{at}.parts", parts, f"make it a list of 1 to {MAX_PARTS} parts")
    read = tuple(_read_part(part, f"{at}.parts[{index}]") for index, part in enumerate(parts))
    metadata = _object(message.get("metadata") or {}, f"{at}.metadata")
    for key in ("extensions", "referenceTaskIds"):
        listed = message.get(key)
        if listed is not None and not (
            isinstance(listed, list) and all(isinstance(mode, str) for mode in listed)
        ):
            raise _invalid(f"{at}.{key}", listed, "make it a list of strings")
    kept = {key: message[key] for key in _MESSAGE_KEYS if message.get(key) is not None}
    return IncomingMessage(
        read_id(message, "messageId", at),
        read,
        {**kept, "parts": list(read)},
        _optional_id(message, "contextId", at),
        _optional_id(message, "taskId", at),
        metadata,
    )


def read_push_config(value: Any, at: str = "params") -> PushConfig:
    """Where and how a client wants to be notified; raises A2aError, which names the field."""
    config = _fields(value, at)
    url = config.get("url")
    if not isinstance(url, str) or not 0 < len(url) <= _LONGEST_URL:
        raise _invalid(f"{at}.url", url, "make it an http or https url")
    login = _fields(config.get("authentication") or {}, f"{at}.authentication")
    return PushConfig(
        url,
        _optional_id(config, "id", at),
        _header_text(config, "token", at),
        _header_text(login, "scheme", f"{at}.authentication"),
        _header_text(login, "credentials", f"{at}.authentication"),
    )


def read_list(params: Any) -> ListRequest:
    """The parameters of ``ListTasks``; raises A2aError, which names the field."""
    fields = _fields(params, "params")
    size = fields.get("pageSize")
    if size is not None and not (type(size) is int and 1 <= size <= MAX_PAGE_SIZE):
        raise _invalid("pageSize", size, f"make it a number from 1 to {MAX_PAGE_SIZE}")
    state = fields.get("status") or None
    if state is not None and state not in STATES:
        shape = f"{state[:40]!r}" if isinstance(state, str) else name_shape(state)
        raise invalid_parameters(f"status is {shape}; make it one of {', '.join(STATES)}")
    token, after = fields.get("pageToken") or "", fields.get("statusTimestampAfter") or None
    for key, text in (("pageToken", token), ("statusTimestampAfter", after)):
        if text is not None and not isinstance(text, str):
            raise _invalid(key, text, "make it a string")
    return ListRequest(
        _optional_id(fields, "contextId", "params"),
        None if state == UNSPECIFIED else state,
        after,
        PAGE_SIZE if size is None else size,
        token,
        _count(fields, "historyLength"),
        fields.get("includeArtifacts") is True,
    )


def read_params(params: Any) -> Mapping[str, Any]:
    """The parameters of any request; raises A2aError unless they are an object."""
    return _fields(params, "params")


def read_id(fields: Mapping[str, Any], key: str, at: str = "params") -> str:
    """A required id; raises A2aError."""
    value = fields.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
        raise _invalid(f"{at}.{key}", value, f"make it a string of 1 to {MAX_ID_LENGTH} characters")
    return value


def read_history_length(params: Mapping[str, Any]) -> int | None:
    """How many of the last messages of its history a task is returned with; None = all."""
    return _count(params, "historyLength")


_LONGEST_URL = 2000


def _optional_id(fields: Mapping[str, Any], key: str, at: str) -> str | None:
    return None if fields.get(key) in (None, "") else read_id(fields, key, at)


def _header_text(fields: Mapping[str, Any], key: str, at: str) -> str | None:
    value = fields.get(key)
    if value is None or value == "":
        return None
    if (
        not isinstance(value, str)
        or len(value) > _LONGEST_URL
        or not (value.isascii() and value.isprintable())
    ):
        raise _invalid(f"{at}.{key}", value, "make it printable ASCII text: it is sent as a header")
    return value


def _read_part(value: Any, at: str) -> Mapping[str, Any]:
    part = _fields(value, at)
    kinds = [key for key in CONTENTS if key in part]
    if len(kinds) != 1:
        problem = f"{at} has {' and '.join(kinds) if kinds else 'no content'}"
        raise invalid_parameters(f"{problem}; give it exactly one of {', '.join(CONTENTS)}")
    content = part[kinds[0]]
    if kinds[0] != "data" and not isinstance(content, str):
        raise _invalid(f"{at}.{kinds[0]}", content, "make it a string")
    if kinds[0] == "raw":
        _check_base64(content, at)
    for key in ("filename", "mediaType"):
        if part.get(key) is not None and not isinstance(part[key], str):
            raise _invalid(f"{at}.{key}", part[key], "make it a string")
    if part.get("metadata") is not None:
        _object(part["metadata"], f"{at}.metadata")
    return {
        key: part[key] for key in _PART_KEYS if key in part and (key in CONTENTS or part[key] is not None)
    }


def _check_base64(content: str, at: str) -> None:
    try:
        b64decode(content.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_parameters(f"{at}.raw is not base64; encode the bytes") from None


def _count(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise _invalid(key, value, "make it a number from 0 upward")
    return value


def _fields(value: Any, at: str) -> Mapping[str, Any]:
    """The fields of an object by their names in JSON; protobuf's own names are accepted as well."""
    fields = _object(value, at)
    if not any("_" in key for key in fields):
        return fields
    return {_JSON_NAMES.get(key, key): item for key, item in fields.items()}


_JSON_NAMES = {
    re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", name): name
    for name in (
        *("messageId", "contextId", "taskId", "referenceTaskIds", "mediaType", "historyLength"),
        *("acceptedOutputModes", "taskPushNotificationConfig", "returnImmediately", "pageSize", "pageToken"),
        *("includeArtifacts", "statusTimestampAfter"),
    )
}
"""Names of fields in protobuf → in JSON."""


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(at, value, "make it an object")
    return value


def _invalid(at: str, value: Any, remedy: str) -> A2aError:
    shape = "missing" if value is None else name_shape(value)
    return invalid_parameters(f"{at} is {shape}; {remedy}")
