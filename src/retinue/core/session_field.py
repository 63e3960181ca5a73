"""The argument of a skill that names the session of a call: a conversation of its caller.

A skill declares it as a property of its input with `FORMAT`. Endpoints that know the conversation of a
request, such as the ``contextId`` of A2A, fill it in where the caller does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FORMAT: Final = "retinue-session"
"""The ``format`` of the JSON Schema of the argument."""

MAX_CHARACTERS: Final = 200

SESSION_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "format": FORMAT,
    "maxLength": MAX_CHARACTERS,
    "description": "Session id, chosen by you: calls with the same one go on with the same conversation",
}
"""The JSON Schema of the argument."""


def fill_session(arguments: Any, schema: Mapping[str, Any] | None, session: str | None) -> Any:
    """The arguments with the session, if the schema declares one and the caller names none."""
    properties = (schema or {}).get("properties")
    if not session or not isinstance(arguments, Mapping) or not isinstance(properties, Mapping):
        return arguments
    for name, form in properties.items():
        if isinstance(form, Mapping) and form.get("format") == FORMAT:
            return arguments if name in arguments else {**arguments, name: session[:MAX_CHARACTERS]}
    return arguments
