"""The budget of one model agent: refuses a call that could cost more than the rest of the budget.

Before a call the most that it may cost is reserved: its prompt, and the longest answer. The longest answer is
cut to what the budget has left, down to `MIN_ANSWER_TOKENS`; below, the call is refused. Spending is kept on
disk, by day (UTC) and by run, so a restart forgets nothing. A run is all calls of one trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson

from retinue.core.allowance import Allowance
from retinue.core.errors import BudgetSpentError, InvalidSettingError, StateDamagedError
from retinue.llm.completion import ModelPrompt, Usage
from retinue.llm.prompts import ASK_INSTRUCTIONS, write_instructions
from retinue.llm.spec import Budget, ModelSpec, Prices, Provider
from retinue.llm.team_budget import OF_TEAM, TeamBudget
from retinue.storage.files import file_mode, hold_lock, replace_file, storage_errors
from retinue.thinking.prompt_size import BYTES_PER_TOKEN

MIN_ANSWER_TOKENS = 256
"""A shorter answer is of no use: the call is refused instead."""

KEPT_RUNS = 500
_TOKENS, _DOLLARS = "trace.tokens", "trace.dollars"
"""The settings of the limits of a chain of calls."""

_MILLION = 1_000_000

_SAMPLE_TOKENS = 1_000
"""For the price of a token: small, since some providers charge more for long prompts."""


@dataclass(slots=True)
class Spent:
    """Spending: tokens, US dollars, and the number of calls."""

    tokens: int = 0
    cost_usd: float = 0.0
    calls: int = 0

    def add(self, usage: Usage) -> None:
        self.tokens += usage.tokens
        self.cost_usd += usage.cost_usd or 0.0
        self.calls += 1

    def as_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "cost_usd": round(self.cost_usd, 6), "calls": self.calls}


@dataclass(slots=True)
class Day:
    """The spending of one day, in all and by run."""

    date: str
    total: Spent = field(default_factory=Spent)
    runs: dict[str, Spent] = field(default_factory=dict)


@dataclass(slots=True)
class Reservation:
    """One call that may begin: the longest answer it may have, and the most that it may use."""

    run_id: str
    max_tokens: int
    most: Usage
    used: Usage | None = None
    of_team: str = ""
    """The id of the reservation in the budget of the team, "" where there is none."""

    def settle(self, used: Usage) -> None:
        """Record the usage of an attempt; the usage of several attempts is added."""
        self.used = used if self.used is None else self.used + used


class Ledger:
    """The spending of one model agent, in the file ``path``, and the rest of its budget.

    Without a path the spending is kept in memory, as tests want it.
    """

    def __init__(
        self,
        path: Path | None,
        spec: ModelSpec,
        *,
        tells_cost: bool = False,
        team: TeamBudget | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``tells_cost``: the back-end reports the cost of a call at its end.

        ``team`` is the budget of the team of the model, which its other models share; None for none.
        """
        self._path = path
        self._spec = spec
        self._budget = spec.budget
        self._tells_cost = tells_cost
        self._team = team
        self._clock = clock
        self._open: list[Reservation] = []
        self._prices: Prices | None = spec.prices
        self._priced = spec.prices is not None
        self._in_memory = Day("")

    @contextmanager
    def reserve(
        self, prompt: ModelPrompt, run_id: str, left: Allowance | None = None
    ) -> Iterator[Reservation]:
        """Reserve the maximum spending of a call; on exit the settled spending is recorded.

        ``left`` is what the chain of calls may still spend. Raises BudgetSpentError, InvalidSettingError for
        a limit of costs without prices, and StateError.
        """
        reservation = self._begin(prompt, run_id, left)
        self._open.append(reservation)
        try:
            yield reservation
        finally:
            self._open.remove(reservation)
            try:
                if self._team is not None:
                    with self._team.changing() as pool:
                        pool.settle(reservation.of_team, reservation.used)
            finally:
                if reservation.used is not None:
                    self._record(reservation)

    @property
    def agent(self) -> str:
        """The name of the model agent."""
        return self._spec.name

    @property
    def model(self) -> str:
        """The name of its model, as the settings have it."""
        return self._spec.asks_model or self._spec.model or ""

    def price(self, usage: Usage) -> Usage:
        """The usage with its cost, where the back-end did not tell it and the prices are known."""
        prices = self._find_prices()
        if usage.cost_usd is not None or prices is None:
            return usage
        plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        cost = (
            plain * prices.input
            + usage.cached_tokens * prices.of_cached
            + usage.cache_write_tokens * prices.of_cache_write
            + usage.output_tokens * prices.output
        )
        return replace(usage, cost_usd=cost / _MILLION)

    def estimate(self, prompt: ModelPrompt, answer_bytes: int) -> Usage:
        """The usage of a call that ended without one, after so much of its answer."""
        output = math.ceil(answer_bytes / BYTES_PER_TOKEN)
        return self.price(Usage(prompt.most_tokens, output, is_estimated=True))

    def read_today(self) -> Spent:
        """The spending of today. Raises StateDamagedError."""
        return self._read_day().total

    def check_prices(self) -> None:
        """Raise InvalidSettingError for a limit of costs without prices."""
        of_team = self._team is not None and self._team.limits.cost_per_day is not None
        if (self._budget.limits_cost or of_team) and self._find_prices() is None and not self._tells_cost:
            raise self._unpriced("a cost is limited")

    def _unpriced(self, reason: str) -> InvalidSettingError:
        return InvalidSettingError(
            f"llm.{self._spec.name}.prices",
            f"{reason}, and the price of {self._spec.asks_model or 'its model'} is not known",
            remedy="set prices = {input = …, output = …} in US dollars for a million tokens",
        )

    def check_limits(self) -> None:
        """Raise InvalidSettingError for a limit that refuses even the shortest prompt, at any time."""
        self.check_prices()
        shortest = ModelPrompt(write_instructions(ASK_INSTRUCTIONS), "?", self._spec.max_tokens)
        most = self._most(shortest)
        unspent = [(name, limit, 0.0) for name, limit, _ in self._list_limits(Day(""), "")]
        if self._team is not None:
            with self._team.changing() as pool:
                unspent += [(name, limit, 0.0) for name, limit, _ in pool.list_limits()]
        try:
            self._cut_answer(most, shortest.max_tokens, unspent)
        except BudgetSpentError as error:
            setting = str(error.data["setting"])
            answer = min(MIN_ANSWER_TOKENS, shortest.max_tokens)
            need = self.price(replace(most, output_tokens=answer))
            least = f"{need.tokens:,} tokens" if "tokens" in setting else f"${need.cost_usd or 0:,.6f}"
            raise InvalidSettingError(
                setting,
                f"every call would be refused: the shortest prompt and answer ({answer} tokens) take {least}",
                remedy="raise the limit, or remove it",
            ) from None

    def _begin(self, prompt: ModelPrompt, run_id: str, left: Allowance | None) -> Reservation:
        self.check_prices()
        day = self._read_day()
        most = self._most(prompt)
        limits = self._list_limits(day, run_id)
        if left is not None:
            if left.dollars is not None and self._find_prices() is None:
                # also where the back-end tells the cost afterwards, because that is too late
                raise self._unpriced("this chain of calls has a limit of money")
            limits += [
                (name, limit, 0.0)
                for name, limit in ((_TOKENS, left.tokens), (_DOLLARS, left.dollars))
                if limit is not None
            ]
        if self._team is None:
            answer = self._cut_answer(most, prompt.max_tokens, limits)
            return Reservation(run_id, answer, self.price(replace(most, output_tokens=answer)))
        with self._team.changing() as pool:
            answer = self._cut_answer(most, prompt.max_tokens, limits + pool.list_limits())
            reserved = self.price(replace(most, output_tokens=answer))
            return Reservation(run_id, answer, reserved, of_team=pool.reserve(reserved))

    def _most(self, prompt: ModelPrompt) -> Usage:
        """The most that a prompt may take, without its answer: no token of it is in the cache yet."""
        tokens = prompt.most_tokens
        writes = prompt.conversation is not None and self._spec.caches
        return Usage(tokens, cache_write_tokens=tokens if writes else 0)

    def _list_limits(self, day: Day, run_id: str) -> list[tuple[str, float, float]]:
        """Each limit: the setting, the limit itself, and the spent or reserved part."""
        budget = self._budget
        run = day.runs.get(run_id, Spent())
        in_run = [reservation.most for reservation in self._open if reservation.run_id == run_id]
        in_all = [reservation.most for reservation in self._open]
        limits: list[tuple[str, float | None, float]] = [
            ("max_tokens_per_call", budget.tokens_per_call, 0),
            (
                "max_tokens_per_run",
                budget.tokens_per_run,
                run.tokens + sum(reservation.tokens for reservation in in_run),
            ),
            ("max_tokens_per_day", budget.tokens_per_day, day.total.tokens + sum(u.tokens for u in in_all)),
            ("max_cost_per_call", budget.cost_per_call, 0),
            ("max_cost_per_run", budget.cost_per_run, run.cost_usd + _sum_cost(in_run)),
            ("max_cost_per_day", budget.cost_per_day, day.total.cost_usd + _sum_cost(in_all)),
        ]
        return [(name, limit, spent) for name, limit, spent in limits if limit is not None]

    def _cut_answer(self, asked: Usage, longest: int, limits: list[tuple[str, float, float]]) -> int:
        """The longest answer that every limit has room for; raises BudgetSpentError."""
        prices = self._find_prices()
        for name, limit, spent in limits:
            left = limit - spent
            if "tokens" in name:
                room = left - asked.tokens
            elif prices is None:
                # what the call costs is told only afterwards
                room = longest if left > 0 else 0
            else:
                after_prompt = left - (self.price(asked).cost_usd or 0.0)
                room = longest if prices.output == 0 else after_prompt / prices.output * _MILLION
            if room < min(MIN_ANSWER_TOKENS, longest):
                if name in (_TOKENS, _DOLLARS):
                    need = self.price(replace(asked, output_tokens=min(MIN_ANSWER_TOKENS, longest)))
                    raise self._refuse_chain(name, limit, need)
                raise self._refuse(name, limit, spent)
            longest = min(longest, int(room))
        return longest

    def _refuse_chain(self, name: str, limit: float, need: Usage) -> BudgetSpentError:
        agent = self._spec.name
        if name == _TOKENS:
            left, least = f"{max(0, limit):,.0f} tokens", f"{need.tokens:,} tokens"
            return BudgetSpentError.of_chain("tokens", agent, least, left, name)
        left, least = f"${max(0.0, limit):,.6f}", f"${need.cost_usd or 0.0:,.6f}"
        return BudgetSpentError.of_chain("money", agent, least, left, name)

    def _refuse(self, name: str, limit: float, spent: float) -> BudgetSpentError:
        agent = self._spec.name
        form = "{:,.0f} tokens" if "tokens" in name else "${:,.4f}"
        period = name.rpartition("_")[2]
        left = f"{form.format(max(0.0, limit - spent))} of {form.format(limit)} per {period} left"
        if name.startswith(OF_TEAM) and self._team is not None:
            problem = (
                f"the team {self._team.limits.team} has {left}, and this call of {agent} could take more"
            )
            return BudgetSpentError.of_model(agent, problem, name)
        problem = f"{agent} has {left}, and this call could take more"
        return BudgetSpentError.of_model(agent, problem, f"llm.{agent}.{name}")

    def _record(self, reservation: Reservation) -> None:
        used = reservation.used
        assert used is not None
        if self._path is None:
            self._in_memory = self._read_day()
            _add(self._in_memory, reservation.run_id, used)
            return
        with storage_errors(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = file_mode(self._path.parent)
        with storage_errors(self._path), hold_lock(Path(f"{self._path}.lock"), mode=mode):
            day = self._read_day()
            _add(day, reservation.run_id, used)
            document = {
                "date": day.date,
                **day.total.as_json(),
                "runs": {run_id: spent.as_json() for run_id, spent in day.runs.items()},
            }
            replace_file(self._path, orjson.dumps(document), mode=0o600)

    def _read_day(self) -> Day:
        today = self._today()
        if self._path is not None:
            return read_day(self._path, today)
        day = self._in_memory
        return day if day.date == today else Day(today, Spent(), day.runs)

    def _today(self) -> str:
        return self._clock().date().isoformat()

    def _find_prices(self) -> Prices | None:
        if not self._priced:
            self._priced = True
            self._prices = find_prices(self._spec.provider, self._spec.asks_model)
        return self._prices


def _add(day: Day, run_id: str, used: Usage) -> None:
    day.total.add(used)
    # the last used run last, so that the oldest are dropped
    run = day.runs.pop(run_id, Spent())
    run.add(used)
    day.runs[run_id] = run
    while len(day.runs) > KEPT_RUNS:
        del day.runs[next(iter(day.runs))]


def read_day(path: Path, date: str) -> Day:
    """The spending of this day; nothing for another day. Runs go on over midnight.

    Raises StateDamagedError.
    """
    try:
        stored = orjson.loads(path.read_bytes()) if path.exists() else {}
        runs = {run_id: _spent(facts) for run_id, facts in stored.get("runs", {}).items()}
        return Day(date, _spent(stored) if stored.get("date") == date else Spent(), runs)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        remedy = "delete it: the budget of the day then begins anew"
        raise StateDamagedError(str(path), "it is not a record of spending", remedy=remedy) from error


def render_spending(spent: Spent, budget: Budget) -> str:
    """Today's spending and its limit, for people; "" for nothing without a limit."""
    if not spent.calls and budget.cost_per_day is None and budget.tokens_per_day is None:
        return ""
    cost = f"${spent.cost_usd:,.4f}" + (
        "" if budget.cost_per_day is None else f" of ${budget.cost_per_day:,.2f}"
    )
    limit = "" if budget.tokens_per_day is None else f" of {budget.tokens_per_day:,}"
    calls = "1 call" if spent.calls == 1 else f"{spent.calls:,} calls"
    tokens = "1 token" if spent.tokens == 1 and not limit else f"{spent.tokens:,}{limit} tokens"
    return f"today {calls}, {tokens}, {cost}"


def _spent(facts: Mapping[str, Any]) -> Spent:
    return Spent(int(facts.get("tokens", 0)), float(facts.get("cost_usd", 0.0)), int(facts.get("calls", 0)))


def _sum_cost(usages: list[Usage]) -> float:
    return sum(usage.cost_usd or 0.0 for usage in usages)


def find_window(provider: Provider | None, model: str) -> int | None:
    """How many tokens a model reads at once, by the list of prices; None as `find_prices`."""
    if provider is None or not model:
        return None
    try:
        from genai_prices import data_snapshot
    except ImportError:
        return None
    try:
        _, info = data_snapshot.get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    return info.context_window


def find_prices(provider: Provider | None, model: str) -> Prices | None:
    """The list prices in US dollars for a million tokens; None for an unknown model, or without the library.

    Nothing is fetched: the prices are those of the library's release.
    """
    if provider is None or not model:
        return None
    try:
        # part of the extra, and not needed by a command
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None

    def price(usage: Tokens) -> float:
        total: Decimal = calc_price(usage, model_ref=model, provider_id=provider).total_price
        return float(total) / _SAMPLE_TOKENS * _MILLION

    try:
        return Prices(
            price(Tokens(input_tokens=_SAMPLE_TOKENS)),
            price(Tokens(output_tokens=_SAMPLE_TOKENS)),
            price(Tokens(input_tokens=_SAMPLE_TOKENS, cache_read_tokens=_SAMPLE_TOKENS)),
            price(Tokens(input_tokens=_SAMPLE_TOKENS, cache_write_tokens=_SAMPLE_TOKENS)),
        )
    except LookupError:
        return None
