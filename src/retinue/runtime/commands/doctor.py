"""Runs the checks of ``retinue doctor``: this machine, the state, the hub, the registries and the models.

A failing check does not stop the others, and no check changes anything except a temporary file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from retinue.core.errors import RetinueError
from retinue.llm.spec import Available
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import list_published
from retinue.parts.installed import KNOWN_PARTS, find_installed_parts
from retinue.parts.part import Check, Status
from retinue.plugins import PARTS, list_plugins
from retinue.runtime.checks.artifacts import check_artifacts
from retinue.runtime.checks.children import check_environment
from retinue.runtime.checks.hub import check_hub, check_list, check_ready
from retinue.runtime.checks.machine import (
    check_agent_port,
    check_hub_port,
    check_libraries,
    check_own_network,
    check_program,
    check_programs,
    check_python,
    check_starter,
    failed,
    guarded,
)
from retinue.runtime.checks.state import (
    check_database,
    check_folder,
    check_layouts,
    check_mesh_key,
    check_runs,
    check_signatures,
    check_space,
    check_token,
)
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.imports import list_rows
from retinue.runtime.factories import configured_registry
from retinue.runtime.imports.files import list_waiting, read_imports
from retinue.runtime.launch import tables_of
from retinue.runtime.loading.policy_files import check_policies
from retinue.runtime.models import list_model_states
from retinue.settings import Settings, find_missing_parts
from retinue.storage.state import HUB_VARIABLE, State
from retinue.web.http_client import HttpClient

_SHOWN_NAMES = 8
OPTIONAL_PROGRAMS = ("docker-registry", "skopeo")


async def examine(
    load: Callable[[], Settings], state: State, environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Run every check."""
    checks = [check_python(), check_libraries()]
    try:
        settings = load()
        checks.append(Check("settings", "ok", "retinue.toml and RETINUE_* are valid"))
    except RetinueError as error:
        checks.append(failed("settings", error))
        # defaults, without reading the invalid sources again
        settings = Settings.model_construct()
    folder = check_folder(state)
    checks += [folder, check_space(state)]
    async with HttpClient() as http:
        address = environ.get(HUB_VARIABLE)
        if folder.status == "fail":
            skipped = [
                "local token",
                "mesh key",
                "database",
                "runs",
                "registry",
                "signatures",
                "artifacts",
                *([] if address else ["hub"]),
            ]
            checks += [Check(name, "warn", "not checked", "fix the state folder first") for name in skipped]
        else:
            home = LayoutRegistry(state.registry)
            checks += [check_token(state), check_mesh_key(state), check_database(state)]
            checks.append(await check_runs(settings, state))
            checks.append(await guarded("registry", lambda: check_layouts(home)))
            checks.append(await guarded("signatures", lambda: check_signatures(settings, state, home)))
            checks.append(await guarded("artifacts", lambda: check_artifacts(settings, state, http)))
        hub_url = None
        if address or folder.status != "fail":
            hub_check, hub_url = await check_hub(state, address, settings, http)
            checks.append(hub_check)
        if hub_url is not None:
            url = hub_url
            checks += await check_ready(state, url, settings, http)
            checks.append(await guarded("tool list", lambda: check_list(state, url, settings, http)))
            if not address:
                checks += await _check_imports(settings, state)
        checks += [check_own_network(), *check_hub_port(settings.hub.port, hub_url), check_agent_port()]
        checks += [await _check_registry(url, settings, http) for url in settings.registries]
    checks += [check_program(name) for name in OPTIONAL_PROGRAMS]
    checks += [check_starter("uvx", "uv"), check_starter("npx", "Node.js")]
    checks.append(await guarded("programs", check_programs))
    checks += check_environment(settings, state, environ)
    checks += _check_parts(settings, state)
    checks += check_policies(settings.policy, state.root)
    return checks + _check_models(settings, state, environ)


def _check_parts(settings: Settings, state: State) -> list[Check]:
    """The rows of installed parts, and the parts that are missing."""
    tables = tables_of(settings)
    checks = [_describe_missing(name, error) for name, error in find_missing_parts(settings).items()]
    checks += [
        Check(f"part {name}", "warn", "parts.off names it, but it is not installed", "correct parts.off")
        for name in settings.parts.off
        if name not in {*KNOWN_PARTS, *(plugin.name for plugin in list_plugins(PARTS))}
    ]
    for part in find_installed_parts(settings.parts.off).parts:
        try:
            checks += part.checks(tables, state)
        except Exception as error:  # noqa: BLE001 - a failing check does not stop the others
            reason = error.message if isinstance(error, RetinueError) else f"{type(error).__name__}: {error}"
            checks.append(Check(f"part {part.name}", "fail", f"its check failed: {reason}"))
    return checks


def _describe_missing(name: str, error: RetinueError) -> Check:
    """The row of a part that is missing; the name of the check is not repeated."""
    check = f"part {name}"
    return Check(check, "fail", error.message.removeprefix(f"{check}: "), error.remedy)


async def _check_imports(settings: Settings, state: State) -> list[Check]:
    """Each import that does not run, or whose tools wait to be accepted; else that all are connected."""
    try:
        kept, waiting = read_imports(settings, state), list_waiting(settings, state)
        if not kept:
            return []
        async with open_client(settings, state) as client:
            rows = await list_rows(client)
    except RetinueError as error:
        return [failed("imports", error)]
    checks = []
    connected = 0
    for name in kept:
        row = rows.get(name, {})
        status, reason = row.get("status", "not listed"), str(row.get("last_error") or "")
        connected += status in ("available", "degraded")
        if status != "available":
            remedy = f"mend it, or remove it: retinue imports remove {name}"
            checks.append(Check(f"import {name}", "warn", reason or str(status), remedy))
        if tools := waiting[name]:
            names = f"{', '.join(tools[:_SHOWN_NAMES])}{' …' * (len(tools) > _SHOWN_NAMES)}"
            remedy = f"see the changes: retinue imports accept {name} --show"
            checks.append(Check(f"import {name}", "warn", f"waits to be accepted: {names}", remedy))
    return [Check("imports", "ok", f"{connected} of {len(kept)} connected"), *checks]


async def _check_registry(url: str, settings: Settings, http: HttpClient) -> Check:
    name = url.rpartition("@")[2]
    try:
        registry = configured_registry(url, settings, http)
        name = registry.name
        count = len(await list_published(registry))
    except RetinueError as error:
        return failed(name, error)
    return Check(name, "ok", f"answers, {count} repositories")


def _check_models(settings: Settings, state: State, environ: Mapping[str, str]) -> list[Check]:
    """Whether each language model can be started, and its spending of today."""
    try:
        models = list_model_states(settings, state, environ)
    except RetinueError as error:
        return [failed("models", error)]
    checks = []
    for model in models:
        name = f"model {model.name}"
        if isinstance(model.backend, Available):
            details = model.backend.found + (f"; {model.spending}" if model.spending else "")
            checks.append(
                Check(name, "fail" if model.problem else "ok", model.problem or details, model.remedy)
            )
        else:
            # claude and gemini are there without anybody having asked for them
            status: Status = "warn" if model.is_configured else "ok"
            remedy = f"to use it: {model.backend.remedy}"
            checks.append(Check(name, status, f"not available: {model.backend.reason}", remedy))
    return checks
