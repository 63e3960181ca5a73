"""Budgets: refused before they are spent, kept on disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import BudgetSpentError, InvalidSettingError, StateDamagedError
from retinue.llm.completion import ModelPrompt, Usage
from retinue.llm.prompts import ASK_INSTRUCTIONS, write_instructions
from retinue.llm.spec import Budget, ModelSpec, Prices
from retinue.llm.spending import MIN_ANSWER_TOKENS, Ledger, find_window, read_day
from retinue.llm.team_budget import TeamBudget, TeamLimits
from retinue.thinking.prompt_size import estimate_tokens

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
PRICES = Prices(input=3.0, output=15.0)
PROMPT = ModelPrompt("Be brief.", "x" * 291, 1000)
ASKED = PROMPT.most_tokens


class Days:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def ledger_of(
    path: Path, clock: Days | None = None, *, prices: Prices | None = PRICES, **limits: Any
) -> Ledger:
    spec = ModelSpec("claude", model="unknown-model", prices=prices, budget=Budget(**limits))
    return Ledger(path / "claude.json", spec, clock=clock or Days())


def spend(ledger: Ledger, run: str = "r", tokens: tuple[int, int] = (100, 50)) -> int:
    with ledger.reserve(PROMPT, run) as reservation:
        reservation.settle(ledger.price(Usage(*tokens)))
    return reservation.max_tokens


def test_a_call_costs_what_its_tokens_cost(tmp_path: Path) -> None:
    assert ledger_of(tmp_path).price(Usage(1_000_000, 100_000)).cost_usd == pytest.approx(4.5)
    told = Usage(10, 10, cost_usd=0.5)
    assert ledger_of(tmp_path).price(told) == told


def test_the_spending_of_a_day_is_kept_over_a_restart_and_begins_anew_the_next_day(tmp_path: Path) -> None:
    clock = Days()
    spend(ledger_of(tmp_path, clock), tokens=(800, 100))
    again = ledger_of(tmp_path, clock, tokens_per_day=1000)
    with pytest.raises(BudgetSpentError) as caught:
        spend(again)
    assert "100 tokens of 1,000 tokens per day left" in caught.value.message
    assert caught.value.remedy == "raise llm.claude.max_tokens_per_day"
    assert caught.value.data["setting"] == "llm.claude.max_tokens_per_day"
    clock.now += timedelta(days=1)
    spend(again)
    assert read_day(tmp_path / "claude.json", "2026-11-23").total.calls == 1


def test_the_answer_is_cut_to_what_is_left(tmp_path: Path) -> None:
    left = 400
    ledger = ledger_of(tmp_path, tokens_per_call=ASKED + left)
    assert spend(ledger) == left
    assert spend(ledger_of(tmp_path)) == PROMPT.max_tokens
    cost = (ASKED * 3 + left * 15) / 1e6
    assert spend(ledger_of(tmp_path, cost_per_call=cost + 1e-9)) == left


def test_a_call_that_could_cost_more_than_is_left_is_refused_before_it_is_made(tmp_path: Path) -> None:
    for limits in ({"tokens_per_call": ASKED + 100}, {"cost_per_call": (ASKED * 3 + 100 * 15) / 1e6}):
        with pytest.raises(BudgetSpentError):
            spend(ledger_of(tmp_path, **limits))
    assert not (tmp_path / "claude.json").exists()


@pytest.mark.parametrize("period", ["call", "run", "day"])
def test_a_limit_that_refuses_every_call_is_named_with_what_a_call_takes(tmp_path: Path, period: str) -> None:
    shortest = write_instructions(ASK_INSTRUCTIONS) + "?"
    least = estimate_tokens(len(shortest.encode())) + MIN_ANSWER_TOKENS
    enough: dict[str, Any] = {f"tokens_per_{period}": least}
    ledger_of(tmp_path, **enough).check_limits()
    for limits in ({f"tokens_per_{period}": least - 1}, {f"cost_per_{period}": 0.0001}):
        too_little: dict[str, Any] = {**limits}
        with pytest.raises(InvalidSettingError) as caught:
            ledger_of(tmp_path, **too_little).check_limits()
        (name,) = limits
        assert caught.value.field == f"llm.claude.max_{name}"
        assert "tokens) take" in caught.value.message
        assert ("$" in caught.value.message) == name.startswith("cost")


def test_calls_that_run_at_once_do_not_share_what_is_left(tmp_path: Path) -> None:
    most = (ASKED * 3 + 1000 * 15) / 1e6
    ledger = ledger_of(tmp_path, cost_per_day=1.5 * most)
    with ledger.reserve(PROMPT, "a") as first:
        assert first.max_tokens == 1000
        with ledger.reserve(PROMPT, "b") as second:
            assert second.max_tokens < 1000
            with pytest.raises(BudgetSpentError):
                spend(ledger, "c")
    spend(ledger, "c")  # nothing was settled, so everything was given back


def test_a_run_has_a_budget_of_its_own(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, tokens_per_run=2000)
    spend(ledger, "one", (1000, 700))
    with pytest.raises(BudgetSpentError, match="per run"):
        spend(ledger, "one")
    spend(ledger, "two")


def test_the_models_of_a_team_share_its_budget_and_what_each_call_reserves(tmp_path: Path) -> None:
    clock, limits = Days(), TeamLimits("words", tokens_per_day=ASKED + 1200)
    uptime: list[Any] = ["a start", 1000.0]

    def open_ledger(name: str, **own: Any) -> Ledger:
        spec = ModelSpec(name, model="m", prices=PRICES, budget=Budget(**own))
        budget = TeamBudget(
            tmp_path / "words@.json",
            limits,
            lapse_s=60.0,
            clock=clock,
            uptime=lambda: (uptime[0], uptime[1]),
        )
        return Ledger(tmp_path / f"words@{name}.json", spec, team=budget, clock=clock)

    first, second = open_ledger("one"), open_ledger("two")  # each is a process of its own
    with first.reserve(PROMPT, "r") as reserved:
        assert reserved.max_tokens == PROMPT.max_tokens
        with pytest.raises(BudgetSpentError) as caught:
            spend(second)
        assert "the team words has 200 tokens" in caught.value.message
        assert caught.value.data["setting"] == "budget.max_tokens_per_day"
        reserved.settle(Usage(100, 50))
    assert spend(second, tokens=(0, 0)) == PROMPT.max_tokens, "what was not used is free again"
    with pytest.raises(BudgetSpentError) as caught:
        spend(open_ledger("three", tokens_per_call=100))
    assert caught.value.data["setting"] == "llm.three.max_tokens_per_call", "it never widens a model's own"

    # a process that is killed in a call gives back what it has reserved when the call must have ended
    killed = first.reserve(PROMPT, "r")
    killed.__enter__()
    with pytest.raises(BudgetSpentError):
        spend(second)
    clock.now -= timedelta(days=1)
    with pytest.raises(BudgetSpentError):
        spend(second)
    uptime[1] += 61.0  # also with a clock that was set back
    assert spend(second, tokens=(0, 0)) == PROMPT.max_tokens
    # and a machine that starts again has ended all calls, at whatever second
    ended = first.reserve(PROMPT, "r")
    ended.__enter__()
    with pytest.raises(BudgetSpentError):
        spend(second)
    uptime[:] = ["another start", 1061.0]
    assert spend(second, tokens=(0, 0)) == PROMPT.max_tokens
    for call in (killed, ended):
        call.__exit__(None, None, None)
    (tmp_path / "words@.json").write_text("[]")
    with pytest.raises(StateDamagedError):
        spend(second)


@pytest.mark.parametrize(
    "content", ["[]", '{"open": {"a": {"until": 1e12, "tokens": null}}}', '{"open": {"a": {"until": 1e12}}}']
)
def test_a_damaged_budget_of_a_team_is_an_error_and_the_model_still_counts_its_own(
    tmp_path: Path, content: str
) -> None:
    clock, file = Days(), tmp_path / "words@.json"
    budget = TeamBudget(file, TeamLimits("words", tokens_per_day=10_000), lapse_s=60.0, clock=clock)
    ledger = Ledger(tmp_path / "words@m.json", ModelSpec("m", model="m"), team=budget, clock=clock)
    calling = ledger.reserve(PROMPT, "r")
    calling.__enter__().settle(Usage(100, 50))
    file.write_text(content)
    with pytest.raises(StateDamagedError, match="not a record of spending"):
        calling.__exit__(None, None, None)
    assert read_day(tmp_path / "words@m.json", NOON.date().isoformat()).total.tokens == 150
    with pytest.raises(StateDamagedError, match="not a record of spending"):
        spend(ledger)


def test_a_limit_of_the_costs_of_a_team_needs_prices(tmp_path: Path) -> None:
    budget = TeamBudget(tmp_path / "t@.json", TeamLimits("t", cost_per_day=1.0), lapse_s=60.0)
    ledger = Ledger(tmp_path / "t@m.json", ModelSpec("m", model="unknown-model"), team=budget)
    with pytest.raises(InvalidSettingError, match="a cost is limited"):
        spend(ledger)


def test_a_limit_of_costs_needs_prices(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        spend(ledger_of(tmp_path, prices=None, cost_per_day=1.0))
    assert caught.value.field == "llm.claude.prices"


def test_a_back_end_that_tells_its_cost_is_refused_once_the_limit_is_reached(tmp_path: Path) -> None:
    spec = ModelSpec("claude", budget=Budget(cost_per_day=1.0))
    ledger = Ledger(tmp_path / "claude.json", spec, tells_cost=True, clock=Days())
    for _ in range(2):
        with ledger.reserve(PROMPT, "r") as reservation:
            reservation.settle(Usage(10, 10, cost_usd=0.6))
    with pytest.raises(BudgetSpentError, match=r"\$0.0000 of \$1.0000 per day left"):
        spend(ledger)


def test_the_attempts_of_one_call_add_up_and_the_file_is_private(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    with ledger.reserve(PROMPT, "r") as reservation:
        reservation.settle(ledger.estimate(PROMPT, 300))
        reservation.settle(ledger.price(Usage(100, 50)))
    day = read_day(tmp_path / "claude.json", "2026-11-22")
    assert day.total.tokens == ASKED + 100 + 150
    assert day.runs["r"].cost_usd == pytest.approx(day.total.cost_usd, abs=1e-6)
    assert (tmp_path / "claude.json").stat().st_mode & 0o077 == 0


def test_what_a_failed_call_spent_is_recorded(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)

    def fail() -> None:
        with ledger.reserve(PROMPT, "r") as reservation:
            reservation.settle(Usage(5, 5))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read_day(tmp_path / "claude.json", "2026-11-22").total.tokens == 10


def test_a_damaged_record_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "claude.json").write_text("{nonsense")
    with pytest.raises(StateDamagedError, match="not a record of spending"):
        spend(ledger_of(tmp_path))


def test_the_list_of_prices_knows_how_much_models_read_at_once() -> None:
    assert find_window("openai", "gpt-4o") == 128_000
    assert find_window("openai", "unheard-of") is None
    assert find_window(None, "gpt-4o") is None
    assert find_window("openai", "") is None
