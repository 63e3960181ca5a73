"""What makes a model available, and the reason where nothing does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.llm.spec import SEED_MODELS, Available, ModelSpec, Unavailable, check_spec, find_backend
from retinue.runtime.models import read_models
from retinue.settings import Settings
from tests.requirements import requirement

CLAUDE = SEED_MODELS["claude"]


def installed(*programs: str) -> Callable[[str, str | None], str | None]:
    return lambda name, path: f"/bin/{name}" if name in programs else None


def find(spec: ModelSpec, environ: dict[str, str], *programs: str, library: bool = True) -> Any:
    return find_backend(spec, environ, find_program=installed(*programs), has_library=lambda: library)


@requirement("L-21")
def test_claude_and_gemini_exist_without_a_table_with_the_numbers_of_the_seed() -> None:
    models = read_models(Settings())
    assert {name: (dict(one.scores), one.context_window) for name, one in models.items()} == {
        "claude": ({"planning": 0.95, "execution": 0.85, "review": 0.90}, 200_000),
        "gemini": ({"planning": 0.85, "execution": 0.95, "review": 0.80}, 1_000_000),
    }


def test_a_key_means_the_api_and_a_program_the_command() -> None:
    assert find(CLAUDE, {"ANTHROPIC_API_KEY": "k"}, "claude").backend == "api"
    assert find(CLAUDE, {}, "claude").backend == "command"
    assert find(SEED_MODELS["gemini"], {"GOOGLE_API_KEY": "k"}).backend == "api"


def test_without_the_extra_a_key_is_no_use_and_the_command_is_taken() -> None:
    found = find(CLAUDE, {"ANTHROPIC_API_KEY": "k"}, "claude", library=False)
    assert found.backend == "command"
    found = find(CLAUDE, {"ANTHROPIC_API_KEY": "k"}, library=False)
    assert found == Unavailable(
        "retinue[llm] is not installed, and no claude command found",
        'pip install "retinue[llm]" or install claude',
    )


def test_the_reason_names_everything_that_was_looked_for() -> None:
    assert find(CLAUDE, {}) == Unavailable(
        "no ANTHROPIC_API_KEY, and no claude command found", "set ANTHROPIC_API_KEY or install claude"
    )
    assert find(CLAUDE, {"ANTHROPIC_API_KEY": " "}).reason.startswith("no ANTHROPIC_API_KEY")


def test_only_the_configured_back_end_is_looked_for() -> None:
    tables = {"claude": {"backend": "command"}, "gemini": {"backend": "api"}}
    models = read_models(Settings(llm=tables))
    assert find(models["claude"], {"ANTHROPIC_API_KEY": "k"}).reason == "no claude command found"
    assert find(models["gemini"], {}, "gemini").reason == "no GEMINI_API_KEY"


def test_the_key_of_a_vendor_does_not_go_to_another_server_by_default() -> None:
    local = {"base_url": "http://127.0.0.1:11434/v1", "model": "qwen"}
    spec = read_models(Settings(llm={"local": local}))["local"]
    assert spec.provider == "openai"
    assert spec.find_key({"OPENAI_API_KEY": "k"}) is None
    assert isinstance(find(spec, {}), Available)
    named = read_models(Settings(llm={"local": {**local, "api_key_env": "MINE"}}))["local"]
    assert named.find_key({"MINE": "m", "OPENAI_API_KEY": "k"}) == "m"
    assert find(named, {"OPENAI_API_KEY": "k"}).reason.startswith("no MINE")


def test_a_table_changes_what_it_names_and_can_drop_a_model() -> None:
    tables = {"claude": {"model": "claude-opus-5-5", "max_cost_per_day": 2.0}, "gemini": {"enabled": False}}
    models = read_models(Settings(llm=tables))
    assert list(models) == ["claude"]
    assert models["claude"].model == "claude-opus-5-5"
    assert models["claude"].context_window == 200_000
    assert models["claude"].budget.cost_per_day == 2.0


def test_the_settings_of_the_guide_are_valid() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "models.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    models = read_models(Settings(llm=tomllib.loads("".join(blocks))["llm"]))
    assert list(models) == ["claude", "local", "codex"]
    assert models["claude"].budget.cost_per_day == 5.0
    assert (models["local"].provider, models["local"].languages) == ("openai", ("Python",))
    assert models["codex"].backend == "command"


@requirement("W-24")
def test_the_models_without_a_table_declare_the_common_languages_and_a_table_replaces_them() -> None:
    models = read_models(Settings(llm={"claude": {"languages": ["Rust"]}, "mine": {"command": "codex"}}))
    assert models["claude"].languages == ("Rust",)
    assert {"Python", "TypeScript", "C++", "SQL"} <= {*models["gemini"].languages}
    assert models["mine"].languages == ()


def test_a_known_command_implies_its_provider_and_another_one_none() -> None:
    assert check_spec(ModelSpec("x", command="/opt/codex")).provider == "openai"
    own = check_spec(ModelSpec("x", command="/opt/my-model"))
    assert (own.provider, own.backend) == (None, "command")


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({}, "llm.x.provider"),
        ({"base_url": "http://127.0.0.1:1"}, "llm.x.model"),
        ({"command": "codex", "prices": {"input": 1.0}}, "llm.x.prices"),
        ({"command": "codex", "folder": Path("/nowhere/at/all")}, "llm.x.folder"),
    ],
)
def test_an_incomplete_table_names_the_field_and_the_remedy(table: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        read_models(Settings(llm={"x": table}))
    assert caught.value.field == field
    assert caught.value.remedy


def test_the_name_of_the_hub_is_taken() -> None:
    with pytest.raises(InvalidSettingError, match="the hub has this name"):
        read_models(Settings(llm={"retinue": {"command": "codex"}}))
