"""Composes the language models of a process: configuration, availability and start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import orjson

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.core.record import HUB_NAME
from retinue.core.text import suggest
from retinue.llm.command_model import TELL_COST, CommandModel
from retinue.llm.completion import Model
from retinue.llm.model_agent import describe_model, model_agent
from retinue.llm.model_calls import ALLOWANCE_S, MAX_CONVERSATION_BYTES, ModelCalls, OpenModel
from retinue.llm.not_started import ModelsNotStarted
from retinue.llm.prompts import write_task
from retinue.llm.spec import (
    SEED_MODELS,
    Available,
    Budget,
    ModelSpec,
    Prices,
    Unavailable,
    check_spec,
    find_backend,
)
from retinue.llm.spending import Ledger, find_window, read_day, render_spending
from retinue.llm.team_budget import TeamBudget, TeamLimits
from retinue.settings import Settings, environment
from retinue.settings_tables import LlmTable
from retinue.storage.state import TEAM_BUDGET_VARIABLE, TEAM_VARIABLE, State

FIRST_MODEL_PORT = 8021
"""Model agents take the first free port from here."""


@dataclass(frozen=True, slots=True)
class Models:
    """The models of a hub: startable ones, with the variables that may hold their keys, and the others."""

    key_variables: Mapping[str, Sequence[str]]
    not_started: ModelsNotStarted


def read_models(settings: Settings) -> dict[str, ModelSpec]:
    """The configured models and those without a table, by name. Raises InvalidSettingError."""
    specs = dict(SEED_MODELS)
    for name, table in settings.llm.items():
        specs.pop(name, None)
        if table.enabled:
            specs[name] = _spec_of(name, table)
    return specs


def find_models(settings: Settings, environ: Mapping[str, str], *, lists_unnamed: bool = True) -> Models:
    """The models that this machine can run, and the others. Raises InvalidSettingError.

    Without ``lists_unnamed``, a model that neither a table nor ``hub.models`` names, and that this machine
    cannot run, is left out.
    """
    own = version("retinue")
    available: dict[str, Sequence[str]] = {}
    missing = {}
    specs = read_models(settings)
    named = {*settings.llm, *(settings.hub.models or ())}
    if settings.hub.models is not None:
        specs = {name: _choose_model(specs, name) for name in settings.hub.models}
    for name, spec in specs.items():
        backend = _find_usable(spec, environ)
        if isinstance(backend, Unavailable):
            if lists_unnamed or name in named:
                missing[name] = describe_model(spec, own), backend
        else:
            available[name] = spec.key_variables
    return Models(available, ModelsNotStarted(missing))


def _find_usable(spec: ModelSpec, environ: Mapping[str, str]) -> Available | Unavailable:
    """The back-end of a model; unavailable also where its limits refuse every call."""
    backend = find_backend(spec, environ)
    if isinstance(backend, Available):
        try:
            _make_ledger(Path(), spec, backend).check_limits()
        except InvalidSettingError as error:
            return Unavailable(error.message, error.remedy)
    return backend


def _choose_model(models: Mapping[str, ModelSpec], name: str) -> ModelSpec:
    """The model of this name; raises InvalidSettingError."""
    if name in models:
        return models[name]
    near = suggest(name, models)
    remedy = f"did you mean {', '.join(near)}?" if near else f"configure it: [llm.{name}] in retinue.toml"
    raise InvalidSettingError("llm", f"no model is named {name}", remedy=remedy)


@dataclass(frozen=True, slots=True)
class ModelState:
    """The facts of a model on this machine; ``problem`` makes an installed model unusable."""

    name: str
    backend: Available | Unavailable
    is_configured: bool
    spending: str = ""
    problem: str = ""
    remedy: str = ""


def list_model_states(settings: Settings, state: State, environ: Mapping[str, str]) -> list[ModelState]:
    """Every model, whether it can be started, and its spending of today. Raises InvalidSettingError."""
    states = []
    for name, spec in read_models(settings).items():
        backend, is_configured = find_backend(spec, environ), name in settings.llm
        if isinstance(backend, Unavailable):
            states.append(ModelState(name, backend, is_configured))
            continue
        ledger = _open_ledger(state, spec, backend)
        try:
            ledger.check_limits()
            spending = render_spending(ledger.read_today(), spec.budget)
        except RetinueError as error:
            states.append(
                ModelState(name, backend, is_configured, problem=error.message, remedy=error.remedy)
            )
        else:
            states.append(ModelState(name, backend, is_configured, spending))
    return states


def explain_no_tools(settings: Settings, state: State, environ: Mapping[str, str]) -> list[str]:
    """Why no model of this machine takes tools, in lines; none if one does. Raises InvalidSettingError."""
    lines = []
    for model in list_model_states(settings, state, environ):
        if isinstance(model.backend, Unavailable):
            lines.append(f"  {model.name}: {model.backend.reason}; {model.backend.remedy}")
        elif model.problem:
            lines.append(f"  {model.name}: {model.problem}; {model.remedy}")
        elif model.backend.backend == "command":
            lines.append(f"  {model.name}: a command line takes no tools; set the key of its API")
        else:
            return []
    return lines


def spending_reader(settings: Settings, state: State) -> Callable[[str], Mapping[str, Any] | None]:
    """Reads an agent's spending of today and its limits; None if it is no model or has spent nothing.

    A damaged record is told as such; it does not keep agents from being listed.
    """
    limits = {name: _list_limits(table) for name, table in settings.llm.items() if table.enabled}

    def spending_of(name: str) -> Mapping[str, Any] | None:
        path = state.spending / f"{name}.json"
        if name not in limits and (name not in SEED_MODELS or not path.exists()):
            return None
        try:
            today = read_day(path, datetime.now(UTC).date().isoformat()).total.as_json()
        except RetinueError as error:
            return {"error": error.message, "remedy": error.remedy}
        return {"today": today, "limits": limits.get(name, {})}

    return spending_of


def _list_limits(table: LlmTable) -> dict[str, Any]:
    limits = table.model_dump(exclude_none=True)
    return {key: value for key, value in limits.items() if key.startswith(("max_tokens_", "max_cost_"))}


def answer_as_character(agent: Agent, settings: Settings, state: State, name: str) -> None:
    """Let the model of this name answer the actions of a character that have no functions.

    Raises InvalidSettingError for an unknown model, and for one that this machine cannot run.
    """
    # imported here, because only processes of characters need it
    from retinue.authoring.character import CharacterAgent

    assert isinstance(agent, CharacterAgent)
    spec, open_model, ledger = _open(settings, state, name)
    calls = ModelCalls(spec, open_model, ledger)

    async def answer_as(context: Context, persona: str, task: str, data: Any) -> Answer:
        return await calls.answer(context, persona, write_task(task, [("what the request is about", data)]))

    agent.answer_with(answer_as, spec.timeout_s + ALLOWANCE_S)


def open_model_agent(settings: Settings, state: State, name: str) -> Agent:
    """The agent of one model, for its own process.

    Raises InvalidSettingError for an unknown model, and for one that this machine cannot run.
    """
    return model_agent(*_open(settings, state, name), version=version("retinue"))


def accept_conversations(settings: Settings) -> Settings:
    """The settings of a model agent: it takes requests as large as a conversation with images may be.

    A configured ``limits.body_bytes`` stays.
    """
    if "body_bytes" in settings.limits.model_fields_set:
        return settings
    limits = settings.limits.model_copy(update={"body_bytes": MAX_CONVERSATION_BYTES + 1024**2})
    return settings.model_copy(update={"limits": limits})


def _open(settings: Settings, state: State, name: str) -> tuple[ModelSpec, OpenModel, Ledger]:
    spec = _choose_model(read_models(settings), name)
    environ = environment()
    backend = find_backend(spec, environ)
    if isinstance(backend, Unavailable):
        raise InvalidSettingError(f"llm.{name}", backend.reason, remedy=backend.remedy)
    is_command = backend.backend == "command"
    spec = replace(spec, backend=backend.backend)
    if spec.context_window is None and not is_command and spec.base_url is None:
        spec = replace(spec, context_window=find_window(spec.provider, spec.asks_model))
    ledger = _open_ledger(state, spec, backend)
    ledger.check_limits()

    async def open_model() -> Model:
        if is_command:
            return CommandModel(spec, ledger, environ)
        # seconds and 80 MB, which an agent that is never asked does not need
        return await asyncio.to_thread(_open_api, spec, spec.find_key(environ))

    return spec, open_model, ledger


def _open_ledger(state: State, spec: ModelSpec, backend: Available) -> Ledger:
    """The spending of a model; that of a team is counted for the team alone, over all its digests."""
    team = environment().get(TEAM_VARIABLE)
    file = f"{team}@{spec.name}.json" if team else f"{spec.name}.json"
    budget = _open_team_budget(state, team, spec) if team else None
    return _make_ledger(state.spending / file, spec, backend, budget)


def _open_team_budget(state: State, team: str, spec: ModelSpec) -> TeamBudget | None:
    """The budget that the models of a team share; None where the team has none."""
    table = orjson.loads(environment().get(TEAM_BUDGET_VARIABLE, "{}"))
    if not table:
        return None
    limits = TeamLimits(team, table.get("max_tokens_per_day"), table.get("max_cost_per_day"))
    lapse_s = spec.timeout_s * (spec.retries + 1)
    return TeamBudget(state.budget_of_team(team), limits, lapse_s=lapse_s)


def _make_ledger(path: Path, spec: ModelSpec, backend: Available, team: TeamBudget | None = None) -> Ledger:
    program = Path(spec.program).name if spec.program else ""
    tells_cost = backend.backend == "command" and program in TELL_COST
    return Ledger(path, spec, tells_cost=tells_cost, team=team)


def _open_api(spec: ModelSpec, key: str | None) -> Model:
    from retinue.llm.api_model import ApiModel

    return ApiModel(spec, key)


def _spec_of(name: str, table: LlmTable) -> ModelSpec:
    if name == HUB_NAME:
        raise InvalidSettingError(f"llm.{name}", "the hub has this name", remedy="choose another name")
    seed = SEED_MODELS.get(name, ModelSpec(name))
    own_values = table.model_dump(exclude_unset=True, include=_PLAIN)
    if table.scores is not None:
        own_values["scores"] = {**_MIDDLE, **seed.scores, **table.scores}
    if table.prices is not None:
        if not {"input", "output"} <= table.prices.keys():
            raise InvalidSettingError(
                f"llm.{name}.prices", "one of two is missing", remedy="write {input = 3.0, output = 15.0}"
            )
        own_values["prices"] = _read_prices(table.prices)
    if table.folder is not None and not table.folder.is_dir():
        raise InvalidSettingError(
            f"llm.{name}.folder", f"{table.folder} is not a folder", remedy="name a folder that exists"
        )
    budget = Budget(
        table.max_tokens_per_call,
        table.max_tokens_per_run,
        table.max_tokens_per_day,
        table.max_cost_per_call,
        table.max_cost_per_run,
        table.max_cost_per_day,
    )
    return check_spec(replace(seed, **own_values, budget=budget))


def _read_prices(table: Mapping[Literal["input", "output", "cached", "cache_write"], float]) -> Prices:
    return Prices(table["input"], table["output"], table.get("cached"), table.get("cache_write"))


_MIDDLE = {"planning": 0.5, "execution": 0.5, "review": 0.5}
"""The scores of a role that is left out."""

_PLAIN = {
    "backend",
    "provider",
    "model",
    "base_url",
    "api_key_env",
    "command",
    "args",
    "folder",
    "context_window",
    "languages",
    "timeout_s",
    "retries",
    "concurrency",
    "max_tokens",
}
"""The settings that a spec has under the same names."""
