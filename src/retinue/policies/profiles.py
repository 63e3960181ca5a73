"""Profiles: policies that are ready to use, for every caller or for one.

The files are in ``profile_files``: NAME.cedar for every caller, and
NAME.one.cedar for one caller and everything that acts for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files

from retinue.core.errors import InvalidSettingError
from retinue.core.text import suggest
from retinue.policies.entities import name_origin, name_principal
from retinue.policies.reads import EntityId

_SUFFIX = ".cedar"
_ONE = ".one"
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")

_PLACES = re.compile("NAME|PRINCIPAL|ORIGIN")

MAX_CALLER_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile for one caller, or for every caller: the name of its file and its policies."""

    file: str
    text: str


def list_profiles() -> dict[str, str]:
    """The names of all profiles, with what they do."""
    return {
        name: _read(name).split("\n", 1)[0].removeprefix("// ")
        for name in sorted(
            file.name.removesuffix(_SUFFIX)
            for file in files("retinue.policies").joinpath("profile_files").iterdir()
            if file.name.endswith(_SUFFIX) and not file.name.endswith(_ONE + _SUFFIX)
        )
    }


def make_profile(name: str, caller: str | None = None, *, is_watched: bool = False) -> Profile:
    """A profile for a caller, whose id is as in access lists; None = for every caller.

    Raises InvalidSettingError for an unknown profile.
    """
    known = list_profiles()
    if name not in known:
        near = suggest(name, known, limit=1)
        remedy = f"did you mean {near[0]}?" if near else f"profiles are {', '.join(known)}"
        raise InvalidSettingError("PROFILE", f"no profile is named {name[:40]!r}", remedy=remedy)
    if caller is None:
        file, text = name, _read(name)
    else:
        if not caller.isprintable() or len(caller) > MAX_CALLER_LENGTH:
            raise InvalidSettingError(
                "--for",
                f"{caller[:80]!r} is no id of a caller",
                remedy=f"write at most {MAX_CALLER_LENGTH} characters, such as token:ann",
            )
        file = f"{name}-{_UNUSUAL.sub('-', caller)}"
        text = _read(name + _ONE)
        # in comments, annotations and ids the name is a part of a text in quotation marks
        values = {
            "NAME": json.dumps(caller, ensure_ascii=False)[1:-1],
            "PRINCIPAL": _write(name_principal(caller)),
            "ORIGIN": _write(name_origin(caller)),
        }
        text = _PLACES.sub(lambda match: values[match[0]], text)
    if is_watched:
        text = text.replace("@id(", '@mode("watch")\n@id(')
    return Profile(file + _SUFFIX, text)


def _read(name: str) -> str:
    return files("retinue.policies").joinpath("profile_files", name + _SUFFIX).read_text("utf-8")


def _write(entity: EntityId) -> str:
    return f"{entity.type}::{json.dumps(entity.id, ensure_ascii=False)}"
