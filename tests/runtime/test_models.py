"""What ``retinue doctor`` tells of the language models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.llm.completion import ModelPrompt, Usage
from retinue.llm.spec import Budget, ModelSpec, Prices
from retinue.llm.spending import Ledger
from retinue.parts.part import Check
from retinue.runtime.commands.doctor import examine
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.models import Models, find_models, open_model_agent
from retinue.settings import Settings
from retinue.settings_tables import HubTable
from retinue.storage.state import State
from tests.llm.programs import answer, write_program
from tests.runtime.composition.live_process import ProcessStarter
from tests.system import open_wire


def check(tmp_path: Path, environ: dict[str, str], **tables: Any) -> dict[str, Check]:
    """The doctor's checks of models by name."""
    state = State(tmp_path / "state")
    checks = asyncio.run(
        examine(lambda: Settings(llm=tables), state, {"PATH": str(tmp_path / "bin"), **environ})
    )
    return {one.name.removeprefix("model "): one for one in checks if one.name.startswith("model ")}


def test_a_model_that_nobody_configured_and_nothing_runs_is_no_problem(tmp_path: Path) -> None:
    found = check(tmp_path, {})
    assert list(found) == ["claude", "gemini"]
    assert found["claude"].status == "ok"
    assert found["claude"].found == "not available: no ANTHROPIC_API_KEY, and no claude command found"
    assert found["claude"].remedy == "to use it: set ANTHROPIC_API_KEY or install claude"


def test_a_configured_model_that_cannot_run_is_a_warning(tmp_path: Path) -> None:
    found = check(tmp_path, {}, mine={"provider": "openai", "backend": "api"})
    assert found["mine"].status == "warn"
    assert found["mine"].found == "not available: no OPENAI_API_KEY"


def test_the_back_end_that_is_used_is_named(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "claude", answer("claude", "x"))
    found = check(tmp_path, {"GEMINI_API_KEY": "secret"}, gemini={"model": "gemini-x"})
    assert found["claude"].found == f"command {tmp_path}/bin/claude"
    assert found["gemini"].found == "gemini-x over the google API"
    assert {one.status for one in found.values()} == {"ok"}
    assert not any("secret" in str(one.as_json()) for one in found.values())


def test_what_was_spent_today_is_told_with_its_limit(tmp_path: Path) -> None:
    spec = ModelSpec("claude", prices=Prices(1.0, 1.0), budget=Budget())
    ledger = Ledger(tmp_path / "state" / "spending" / "claude.json", spec)
    with ledger.reserve(ModelPrompt("", "x", 10), "run") as reservation:
        reservation.settle(Usage(1000, 500, 0.25))
    limits = {"max_cost_per_day": 5.0, "max_tokens_per_day": 9000}
    found = check(tmp_path, {"ANTHROPIC_API_KEY": "k"}, claude=limits)["claude"]
    assert found.found.endswith("; today 1 call, 1,500 of 9,000 tokens, $0.2500 of $5.00")


def test_a_limit_that_refuses_every_call_is_told_before_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"provider": "openai", "model": "m", "max_tokens_per_call": 300}
    environ = {"OPENAI_API_KEY": "k"}
    found = check(tmp_path, environ, mine=table)["mine"]
    assert found.status == "fail"
    assert "llm.mine.max_tokens_per_call: every call would be refused" in found.found
    settings = Settings.model_validate({"llm": {"mine": table}})
    models = find_models(settings, environ, lists_unnamed=False)
    assert not models.key_variables
    (listing,) = asyncio.run(models.not_started.read_all()).listings
    assert listing.record.name == "mine"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(InvalidSettingError, match="max_tokens_per_call"):
        open_model_agent(settings, State(tmp_path), "mine")


def list_missing(models: Models) -> list[str]:
    """The names of the models that are listed and not started."""
    return [listing.record.name for listing in asyncio.run(models.not_started.read_all()).listings]


def test_a_bare_hub_starts_the_models_that_the_machine_can_run(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "claude", answer("claude", "x"))
    environ = {"PATH": str(tmp_path / "bin")}
    bare, whole = (find_models(Settings(), environ, lists_unnamed=lists) for lists in (False, True))
    assert list(bare.key_variables) == list(whole.key_variables) == ["claude"]
    assert (list_missing(bare), list_missing(whole)) == ([], ["gemini"])


def test_a_bare_hub_lists_a_model_that_the_settings_name_and_that_cannot_run(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    for settings, names in (
        (Settings(hub=HubTable(bare=True, models=("claude",))), ["claude"]),
        (Settings(llm={"gemini": {"model": "gemini-x"}}), ["gemini"]),
        (Settings(), []),
    ):
        models = find_models(settings, environ, lists_unnamed=False)
        assert (list(models.key_variables), list_missing(models)) == ([], names)
    with pytest.raises(InvalidSettingError, match="no model is named claud"):
        find_models(Settings(hub=HubTable(models=("claud",))), environ, lists_unnamed=False)


async def test_a_bare_hub_runs_although_it_is_to_start_a_model(
    retinue_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    options = HubOptions(Address("127.0.0.1", 0), bare=True)
    settings, state = Settings(hub=HubTable(models=("claude",))), State(retinue_home)
    starter = ProcessStarter(monkeypatch)
    async with (
        open_wire() as wire,
        starter.running(lambda echo: run_hub(options, settings, state, echo)) as hub,
    ):
        reply = await wire.call(hub.url, "list_agents")
    assert [(row["name"], row["status"]) for row in reply.result["agents"]] == [("claude", "unavailable")]


def test_a_limit_of_costs_without_prices_is_a_failure(tmp_path: Path) -> None:
    table = {"provider": "openai", "model": "unheard-of", "max_cost_per_day": 1.0}
    found = check(tmp_path, {"OPENAI_API_KEY": "k"}, mine=table)["mine"]
    assert found.status == "fail"
    assert "the price of unheard-of is not known" in found.found
    assert "prices" in found.remedy
