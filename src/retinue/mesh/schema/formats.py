"""What the formats of JSON Schema allow: what an agent that reads them with pydantic takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

_TYPES: Mapping[str, type] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_UNCHECKED = (
    *("email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference"),
    *("json-pointer", "regex", "relative-json-pointer", "uri", "uri-reference", "uri-template"),
)
"""Formats that jsonschema-rs would check by rules of its own."""

EXAMPLES: Mapping[str, str] = {
    "date": "be a date such as 2026-01-31",
    "date-time": "be a date and time such as 2026-01-31T12:30:00Z",
    "time": "be a time such as 12:30:00",
    "duration": "be a duration such as PT1H30M",
    "uuid": "be a UUID",
    "decimal": "be a number such as 9.99",
}
"""What a value must do that is refused, by format."""


@cache
def format_checks() -> dict[str, Callable[[str], bool]]:
    """The check of each format; strings that pydantic reads in another spelling are right as well."""
    checks: dict[str, Callable[[str], bool]] = {name: lambda text: True for name in _UNCHECKED}
    return checks | {name: _reads(TypeAdapter(one)) for name, one in _TYPES.items()}


def _reads(adapter: TypeAdapter[object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except ValidationError:
            return False
        return True

    return check
