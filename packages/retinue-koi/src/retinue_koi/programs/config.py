"""The configuration of seed 003: a JSON file, ``KOI_MCP_CONFIG`` over it, and single variables over both.

``KOI_MCP_CONFIG`` is JSON that is merged into the file, key by key. ``KOI_MCP_<SECTION>_<KEY>`` sets one key
of a section that the configuration has, such as ``KOI_MCP_AGENT_BASE_URL``; objects and lists are JSON.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retinue.core.errors import InvalidSettingError
from retinue.core.json_values import name_shape

_log = structlog.get_logger("retinue.koi")

VARIABLE = "KOI_MCP_CONFIG"
CONFIGS = Path(__file__).parent / "configs"
"""The three configurations of the demo (K-27)."""

Trust = Literal["open", "known", "signed"]


_FORMER = {"retinue.runtime.koi.demo_functions": "retinue_koi.programs.demo_functions"}
"""Modules by the names that configurations of earlier versions have."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="allow")


class AgentConfig(_Section):
    """One agent. ``traits`` are plain values or described ones.

    ``functions`` is a Python file or a module; its functions answer for the callable traits of their names.
    ``mcp_url`` replaces the URL that others are told; by default it is the host of ``base_url`` with
    ``mcp_port``.
    """

    name: str
    version: str = "1.0"
    base_url: str
    mcp_port: int = Field(ge=0, le=65535)
    traits: dict[str, Any] = {}
    functions: str | None = None
    mcp_url: str | None = None
    trust: Trust | None = None


class CoordinatorConfig(_Section):
    """The coordinator; its KOI API and its registry are at one port."""

    name: str
    base_url: str
    mcp_registry_port: int = Field(9000, ge=0, le=65535)
    trust: Trust | None = None


class NetworkConfig(_Section):
    """The node that is asked first, by the URL of its KOI API."""

    first_contact: str | None = None


class Config(_Section):
    """The configuration of one program of seed 003: an agent or a coordinator, and its network."""

    agent: AgentConfig | None = None
    coordinator: CoordinatorConfig | None = None
    network: NetworkConfig = NetworkConfig()


def load_config(config_path: str | Path, environment: Mapping[str, str] | None = None) -> Config:
    """Load the configuration; raises InvalidSettingError, which names the file or the variable.

    ``environment`` is that of the process by default.
    """
    if environment is None:
        from retinue.settings import environment as read_environment

        environment = read_environment()
    path = Path(config_path)
    try:
        values = _parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidSettingError(
            str(path), error.strerror or str(error), remedy="name a JSON file with --config"
        ) from error
    if inline := environment.get(VARIABLE, "").strip():
        values = _merge(values, _parse_object(inline.encode(), VARIABLE))
    sources = _apply_variables(values, environment)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidSettingError(
            sources.get(place, f"{path}: {place}"),
            f"{first['msg'].lower()}; found {name_shape(first['input'])}",
            remedy="see the guide of KOI networks",
        ) from error
    _warn_of_unknown(config)
    return config


def load_functions(place: str, names: list[str], folder: Path) -> dict[str, Callable[..., Any]]:
    """The functions of these names in a Python file (below ``folder``) or in a module.

    Modules that have moved are found by their former names.

    Raises InvalidSettingError if it cannot be imported.
    """
    try:
        module = _import_file((folder / place).resolve()) if place.endswith(".py") else None
        module = importlib.import_module(_FORMER.get(place, place)) if module is None else module
    except (Exception, SystemExit) as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidSettingError("agent.functions", f"importing {place}: {line}", remedy="fix it") from error
    functions = {name: getattr(module, name, None) for name in names}
    return {name: value for name, value in functions.items() if inspect.isroutine(value)}


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _parse_object(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidSettingError(where, f"it is not JSON: {error}", remedy="correct it") from error
    if not isinstance(value, dict):
        raise InvalidSettingError(where, f"it is {name_shape(value)}", remedy="make it a JSON object")
    return value


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` with the keys of ``above``; objects are merged, other values replaced."""
    merged = dict(below)
    for key, value in above.items():
        held = merged.get(key)
        merged[key] = _merge(held, value) if isinstance(held, dict) and isinstance(value, Mapping) else value
    return merged


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "agent": AgentConfig,
    "coordinator": CoordinatorConfig,
    "network": NetworkConfig,
}


def _apply_variables(values: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Set the keys that variables name; returns which variable set which key."""
    sources = {}
    for section, model in _SECTIONS.items():
        held = values.setdefault("network", {}) if section == "network" else values.get(section)
        if not isinstance(held, dict):
            continue
        for key, field in model.model_fields.items():
            variable = f"KOI_MCP_{section}_{key}".upper()
            text = environment.get(variable)
            if text is None:
                continue
            held[key] = _parse_object(text.encode(), variable) if _is_object(field.annotation) else text
            sources[f"{section}.{key}"] = variable
    return sources


def _is_object(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_is_object(argument) for argument in get_args(annotation))
    return get_origin(annotation) is dict


def _warn_of_unknown(config: Config) -> None:
    sections = {
        "": config,
        "agent.": config.agent,
        "coordinator.": config.coordinator,
        "network.": config.network,
    }
    for prefix, section in sections.items():
        for key in (section.model_extra or {}) if section is not None else ():
            _log.warning("unknown key in the configuration", key=prefix + key)
