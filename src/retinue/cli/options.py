"""Options and argument types that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from retinue.core.errors import InvalidSettingError

F = TypeVar("F", bound=Callable[..., Any])

MAX_INPUT_CHARACTERS = 4 * 1024 * 1024


def json_option(command: F) -> F:
    """``--json``: print the result, or the error, as JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def hub_option(command: F) -> F:
    """``--hub HUB`` of a command that calls a hub; also taken from ``retinue --hub HUB COMMAND``."""

    def choose(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        outer = context.parent
        while value is None and outer is not None:
            value, outer = outer.params.get(HUB_PARAMETER), outer.parent
        return value

    return click.option(
        "--hub",
        HUB_PARAMETER,
        metavar="HUB",
        callback=choose,
        help="URL of a hub, or name of a context. Default: RETINUE_HUB, the context in use, the hub of this "
        "state.",
    )(command)


def budget_options(command: F) -> F:
    """``--tokens N`` and ``--dollars X``: what the call and the calls that it causes may spend on models."""
    command = click.option(
        "--dollars",
        metavar="X",
        type=click.FloatRange(min=0),
        help="Spend at most so many US dollars on models, including all further calls.",
    )(command)
    return click.option(
        "--tokens",
        metavar="N",
        type=click.IntRange(min=0),
        help="Spend at most so many tokens on models, including all further calls.",
    )(command)


def join_budget(tokens: int | None, dollars: float | None) -> dict[str, float] | None:
    """The budget of these options, None without any."""
    limits = {"tokens": tokens, "dollars": dollars}
    return {key: limit for key, limit in limits.items() if limit is not None} or None


HUB_PARAMETER = "hub"
"""The name of the parameter of ``--hub``, of commands and of the program."""


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


class CommandOfParts(click.Command):
    """The command of a kind of process, with the options that installed parts add to it.

    Parts are imported for the help, for completion, and when a line has an option that the command itself
    does not know, so that an agent on standard input and output needs none. The command gets the values as
    ``part_flags``: tables of settings by the name of the part.
    """

    def __init__(self, *arguments: Any, kind: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._kind = kind
        self._knows_parts = True

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if not self._knows_parts:
            return params
        place = 1 + next(index for index, param in enumerate(params) if param.name == _BEFORE_PARTS)
        return [*params[:place], *self._list_options().values(), *params[place:], *self._list_missing()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not {"--help", "-h"}.intersection(args):
            self._knows_parts = False
            try:
                return super().parse_args(ctx, [*args])
            except click.NoSuchOption:
                pass  # it may be an option of a part
            finally:
                self._knows_parts = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        flags: dict[str, dict[str, Any]] = {}
        values = dict(ctx.params)
        if any(name.startswith(_PREFIX) for name in values):
            for (part, field), option in self._list_options().items():
                value = values.pop(str(option.name))
                if value is not None and value is not False:
                    flags.setdefault(part, {})[field] = value
        assert self.callback is not None
        return ctx.invoke(self.callback, part_flags=flags, **values)

    def _list_options(self) -> dict[tuple[str, str], click.Option]:
        """The options of parts by the part's name and the field of its table."""
        from retinue.parts.installed import list_parts_of

        return {
            (part.name, option.field): click.Option(
                [option.flag, f"{_PREFIX}{part.name}_{option.field}".replace("-", "_").lower()],
                metavar=option.metavar,
                is_flag=option.metavar is None,
                help=option.help,
            )
            for part in list_parts_of(self._kind)
            for option in part.options
            if self._kind in option.kinds
        }

    def _list_missing(self) -> list[click.Option]:
        """Hidden options in place of those of parts that are not installed; each names the distribution."""
        from retinue.parts.installed import KNOWN_PARTS, explain_missing, find_part

        absent = [name for name in KNOWN_PARTS if find_part(name) is None]
        missing = {name: error for name in absent if (error := explain_missing(name)) is not None}
        return [
            _missing_option(flag, error)
            for name, error in missing.items()
            for flag in KNOWN_PARTS[name].flags.get(self._kind, ())
        ]


def _missing_option(flag: str, missing: InvalidSettingError) -> click.Option:
    """A hidden option that names the distribution of a part that is not installed."""

    def refuse(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            raise InvalidSettingError(flag, missing.message, remedy=missing.remedy)

    return click.Option([flag], is_flag=True, is_eager=True, hidden=True, expose_value=False, callback=refuse)


_PREFIX = "part_"
"""Begins the names of parameters that are options of parts."""

_BEFORE_PARTS = "hub_url"
"""The parameter after which the options of parts stand in the help."""


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
    """Parse the JSON object in ``text``; ``-`` and ``@-`` read standard input, ``@FILE`` a file.

    Raises InvalidSettingError with the position of the syntax error, or the type of another value.
    """
    import orjson

    remedy = """write an object, such as '{"name": "Ada"}'"""
    if text in ("-", "@-"):
        text = _read_input(what)
    elif text.startswith("@"):
        text = _read_file(text[1:], what)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSettingError(
            what, f"not valid JSON ({error.msg}, line {error.lineno}, column {error.colno})", remedy=remedy
        ) from None
    if not isinstance(value, dict):
        names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
        shape = names.get(type(value), "a number")
        raise InvalidSettingError(what, f"{shape}, not an object", remedy=remedy)
    return value


def _read_file(path: str, what: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_INPUT_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise InvalidSettingError(what, f"{path} is not UTF-8", remedy="store JSON text in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSettingError(what, f"{path} cannot be read: {reason}", remedy="check the path") from None
    if len(text) > MAX_INPUT_CHARACTERS:
        raise InvalidSettingError(
            what,
            f"{path} is over {MAX_INPUT_CHARACTERS:,} characters",
            remedy="send less, or pass the path of a file that the skill reads",
        )
    return text


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
