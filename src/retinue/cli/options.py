"""Options and argument types that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from retinue.core.errors import InvalidSettingError

F = TypeVar("F", bound=Callable[..., Any])

MAX_INPUT_CHARACTERS = 4 * 1024 * 1024


def json_option(command: F) -> F:
    """``--json``: print the result, or the error, as JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def registry_option(help_text: str, *, multiple: bool = False) -> Callable[[F], F]:
    """``--registry URL``"""
    return click.option(
        "--registry",
        "registries" if multiple else "registry",
        metavar="URL",
        multiple=multiple,
        help=help_text,
    )


def join_option(command: F) -> F:
    """``--join HUB``"""
    return click.option(
        "--join",
        "hub_url",
        metavar="HUB",
        help="Join the mesh of the hub at this URL, on another machine, and find its agents.",
    )(command)


def advertise_option(command: F) -> F:
    """``--advertise URL``"""
    return click.option(
        "--advertise",
        metavar="URL",
        help="URL at which others reach it, such as that of a proxy; it may have a path. "
        "Default: the address that it listens on.",
    )(command)


def insecure_bind_option(command: F) -> F:
    """``--insecure-bind``"""
    return click.option(
        "--insecure-bind", is_flag=True, help="Listen on a non-loopback address without requiring a token."
    )(command)


def part_options(kind: str) -> Callable[[F], F]:
    """The options that installed parts add to the command of a kind of process.

    The command gets their values as ``part_flags``: tables of settings by the name of the part. An option of
    a part that is not installed is hidden, and names the distribution.
    """
    from retinue.parts.installed import KNOWN_PARTS, explain_missing, list_parts_of

    options = [(part.name, option) for part in list_parts_of(kind) for option in part.options]
    options = [(name, option) for name, option in options if kind in option.kinds]

    def decorate(command: F) -> F:
        @wraps(command)
        def with_flags(**values: Any) -> Any:
            flags: dict[str, dict[str, Any]] = {}
            for name, option in options:
                value = values.pop(_parameter_of(name, option.field))
                if value is not None and value is not False:
                    flags.setdefault(name, {})[option.field] = value
            return command(part_flags=flags, **values)

        for name, option in reversed(options):
            with_flags = click.option(
                option.flag,
                _parameter_of(name, option.field),
                metavar=option.metavar,
                is_flag=option.metavar is None,
                help=option.help,
            )(with_flags)
        for name, known in KNOWN_PARTS.items():
            if (missing := explain_missing(name)) is not None:
                for flag in known.flags.get(kind, ()):
                    with_flags = _missing_option(flag, missing)(with_flags)
        return cast(F, with_flags)

    return decorate


def _missing_option(flag: str, missing: InvalidSettingError) -> Callable[[F], F]:
    """An option that stands for the one of a part that is not installed, whatever it would take."""

    def refuse(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            raise InvalidSettingError(flag, missing.message, remedy=missing.remedy)

    return click.option(flag, is_flag=True, is_eager=True, hidden=True, expose_value=False, callback=refuse)


def _parameter_of(part: str, field: str) -> str:
    return f"part_{part}_{field}".replace("-", "_").lower()


def weight_option(command: F) -> F:
    """``--weight N``"""
    return click.option(
        "--weight",
        metavar="N",
        type=click.IntRange(0, 100),
        help="Per cent of the calls without a version range that this version gets while it is the newest; "
        "the next older version gets the rest. Default: 100.",
    )(command)


def database_option(command: F) -> F:
    """``--database URL``"""
    return click.option(
        "--database",
        metavar="URL",
        help="Store runs in this Postgres, shared with other hubs and workers, instead of the state folder.",
    )(command)


def read_object(text: str, what: str) -> dict[str, Any]:
    """Parse the JSON object in ``text``; ``-`` reads standard input.

    Raises InvalidSettingError with the position of the syntax error, or the type of another value.
    """
    import orjson

    remedy = """write an object, such as '{"name": "Ada"}'"""
    if text == "-":
        text = _read_input(what)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSettingError(
            what, f"not valid JSON ({error.msg}, line {error.lineno}, column {error.colno})", remedy=remedy
        ) from None
    if not isinstance(value, dict):
        names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
        found = names.get(type(value), "a number")
        raise InvalidSettingError(what, f"{found}, not an object", remedy=remedy)
    return value


def _read_input(what: str) -> str:
    try:
        text = sys.stdin.read(MAX_INPUT_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise InvalidSettingError(what, "standard input is not UTF-8", remedy="send JSON text") from None
    if len(text) > MAX_INPUT_CHARACTERS:
        raise InvalidSettingError(
            what,
            f"standard input is over {MAX_INPUT_CHARACTERS:,} characters",
            remedy="send less, or pass the path of a file that the skill reads",
        )
    return text
