"""The kinds of values in ``team.toml``: names, versions, paths and variables; which of them are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import semver
from pydantic import AfterValidator, Field, ValidationInfo

from retinue.team.files import find_path_problem

INSTALLED = "is_installed"
"""The key of the context of a validation: whether the definition is one that an earlier Retinue accepted."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OF_THE_MACHINE = re.compile(
    # Retinue and its telemetry, the interpreters, the linker, and the programs that install packages
    r"(?:retinue|python|otel|ld|dyld|npm_config|pip|uv)_.*|python.*"
    r"|node_(?:options|path|extra_ca_certs)|bash_env|env|gconv_path|glibc_tunables"
    # where programs, files and hosts are found, and which hosts are believed
    r"|path|home|shell|(?:https?|all|no|ftp|socks)_proxy|ssl_cert_(?:file|dir)|(?:requests|curl)_ca_bundle",
    re.IGNORECASE,
)


def _check_path(path: str) -> str:
    if problem := find_path_problem(path):
        raise ValueError(f"the path {problem}; write a path below the folder of team.toml")
    return path


def _check_glob(glob: str) -> str:
    if not glob.strip("/") or glob.startswith("/") or {"..", "."} & {*glob.split("/")} or "**" in glob:
        raise ValueError("a glob names files below the folder of team.toml; write such as workflows/*.yaml")
    return glob


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > 64:
        raise ValueError("a name has lower-case letters and digits, separated by - . or _, such as editorial")
    return name


def _check_team_name(name: str, info: ValidationInfo) -> str:
    # the folder of a team lies beside the files of the state of all teams, such as teams.json
    is_installed = bool(info.context and info.context.get(INSTALLED))
    if not _NAME.fullmatch(name) or len(name) > 64 or ("." in name and not is_installed):
        raise ValueError(
            "a name has lower-case letters and digits, separated by - or _; write one such as editorial"
        )
    return name


def _check_version(version: str) -> str:
    # "+" is part of no tag of a registry
    if not semver.Version.is_valid(version) or "+" in version or len(version) > 100:
        raise ValueError("a version is that of semver.org without +, such as 1.4.0 or 1.4.0-rc.1")
    return version


def is_version_in(version: str, requirement: str) -> bool:
    """Whether a version fits all conditions of ``requires``. Raises ValueError for another form."""
    own = semver.Version.parse(version)
    fits = [own.match(condition.strip()) for condition in requirement.split(",")]
    return all(fits)


def _check_requirement(requirement: str) -> str:
    try:
        if len(requirement) > 200:
            raise ValueError
        is_version_in("0.0.0", requirement)
    except ValueError:
        raise ValueError(
            "requires has conditions with whole versions, separated by commas; write such as >=0.1.0, <2.0.0"
        ) from None
    return requirement


def _check_secret(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("the name of a secret is that of an environment variable, such as PETS_API_KEY")
    return name


def check_variable(name: str) -> str:
    """The name of a variable that a team may set for its programs. Raises ValueError.

    Programs of a team get the variables of the machine for Retinue, interpreters, proxies and the search of
    programs. A team that sets one of them would change what runs, and where its calls go.
    """
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is no name of a variable; write one such as PETS_URL")
    if _OF_THE_MACHINE.fullmatch(name):
        raise ValueError(
            f"{name} belongs to the machine that runs the team; leave it out, or read another name"
        )
    return name


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that a team sets for a program. Raises ValueError."""
    for name, text in env.items():
        check_variable(name)
        if "\0" in text:
            raise ValueError(f"{name} has a zero byte, which no variable can have; leave it out")
    return env


TeamPath = Annotated[str, AfterValidator(_check_path)]
Glob = Annotated[str, AfterValidator(_check_glob)]
Name = Annotated[str, AfterValidator(_check_name)]
TeamName = Annotated[str, AfterValidator(_check_team_name)]
Version = Annotated[str, AfterValidator(_check_version)]
Requirement = Annotated[str, AfterValidator(_check_requirement)]
Secret = Annotated[str, AfterValidator(_check_secret)]
Env = Annotated[Mapping[str, str], AfterValidator(check_env)]
Port = Annotated[int, Field(ge=1024, le=65535)]
