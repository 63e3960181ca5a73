"""The step ``think``: a durable loop of requests to a model and of the calls that the model asks for.

Each request and each call is a recorded step below the path of the step:

- ``/plan``: what the loop was recorded with (`think_plan`);
- ``/turn-3/model``: the third request, with the whole reply;
- ``/turn-3/call-1``: the first call of that reply;
- ``/turn-3/found``: skills that the model found;
- ``/turn-3/read``: parts of large results that the model read;
- ``/condense-1``: older turns were condensed (`think_condensing`);
- ``/turn-3/session``: the answer is added to the session;
- ``/turn-3/begin``: calls begin that must not be made twice.

The loop decides by recorded values alone, so that a resumed run repeats no finished request and no call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.allowance import Allowance
from retinue.core.errors import (
    BudgetSpentError,
    InvalidSettingError,
    LimitedError,
    ModelError,
    OutputInvalidError,
    Problem,
    RetinueError,
    StepFailedError,
)
from retinue.core.json_values import text_of
from retinue.core.usage import amount_of
from retinue.thinking.completion import COMPLETE, CompletionReply
from retinue.thinking.condensing import Window
from retinue.thinking.conversation import Conversation, read_answer
from retinue.thinking.limits import FIELDS, LimitName, Spent
from retinue.thinking.plan import ThinkPlan
from retinue.thinking.repeats import Repeats
from retinue.thinking.session import History
from retinue.thinking.toolbox import Toolbox
from retinue.workflows.definitions.definition import Retry, Step
from retinue.workflows.definitions.think import Think
from retinue.workflows.interpreter.frame import Frame, StepResult, add_note, record_failure
from retinue.workflows.interpreter.think.calls import CallTurn
from retinue.workflows.interpreter.think.condensing import Condenser, is_unusable
from retinue.workflows.interpreter.think.model import ModelTurn, ask_model
from retinue.workflows.interpreter.think.plan import PLAN_S, choose_model, read_choice, record_plan
from retinue.workflows.interpreter.think.sessions import remember, take_in_history
from retinue.workflows.runs.records import RUN_ID_MARK, Extension, as_json

LAST_ANSWER_S = 60.0
"""The time for the last answer when the time of the loop is over."""

_BY_BUDGET: Mapping[str, LimitName] = {"tokens": "tokens", "money": "dollars"}


async def run_think(frame: Frame, step: Step, path: str) -> StepResult:
    """Let the model work on the prompt of the step; the output is its answer."""
    options = step.think
    assert options is not None
    values = {
        key: await frame.render(text, path, field=key)
        for key in ("prompt", "instructions", "model", "session")
        if (text := getattr(options, key)) is not None
    }
    if values.get("session") is None:
        values.pop("session", None)
        options = options.model_copy(update={"session": None})
    texts = {key: text_of(value) for key, value in values.items()}
    return await think(frame, options.model_copy(update=texts), path, step.retry or frame.settings.retry)


async def think(frame: Frame, options: Think, path: str, retry: Retry | None = None) -> StepResult:
    """Run the loop at a path; raises StepFailedError, with the cause `LimitedError` where a limit ends it."""
    plan = await record_plan(frame, options, path)
    return await _Loop(frame, plan, path, retry).run()


class _Loop:
    """The loop of one step: its conversation, its tools, and what it has spent."""

    def __init__(self, frame: Frame, plan: ThinkPlan, path: str, retry: Retry | None) -> None:
        self._frame = frame.branch(frame.context, frame.request)
        self._budget = frame.budget.narrow(tokens=plan.limits.tokens, dollars=plan.limits.dollars)
        self._frame.budget = self._budget
        self._plan = plan
        self._path = path
        self._retry = retry
        self._model = read_choice(plan.choice)
        self._condenser = Condenser(self._frame, path, retry, Window(compact_at=plan.compact_at))
        self._condenser.use(self._model)
        self._left_models: set[str] = set()
        self._limits = plan.limits
        self._talk = Conversation(plan)
        self._box = Toolbox(plan.searches)
        self._box.add(plan.tools)
        self._box.note_links(f"{plan.instructions}\n{plan.prompt}")
        self._repeats = Repeats()
        self._spent = Spent()
        self._limit: LimitName | None = None
        self._ends = 0
        self._last_text = ""
        self._sent_tokens = 0
        self._history = History()

    async def run(self) -> StepResult:
        """Ask the model and make its calls, until it answers or a limit is reached."""
        take_in_history(self._frame, self._plan)
        await self._condense_history()
        while True:
            await self._condense_turns()
            limit = self._limit or self._find_limit()
            if limit is not None:
                await self._end(limit)
                continue
            turn = await self._ask()
            if turn.reply is None:
                self._limit = await self._take_failure(turn)
            elif turn.reply.finish == "refused":
                raise await self._fail(ModelError.refused(self._model.agent, turn.reply.text))
            elif turn.reply.calls:
                await self._call(turn.reply)
            elif (problem := self._talk.find_problem(turn.reply)) is None:
                return await self._result(turn.reply)
            elif not self._talk.object_to(problem):
                raise await self._fail(_unfit(self._path, problem, turn.reply))

    async def _condense_history(self) -> None:
        """Condense the older part of a long history of the session."""
        history = History.from_json(self._plan.history)
        self._history, turn = await self._condenser.condense_history(
            history, self._model, self._spent, self._left, self._spent.seconds_left(self._limits)
        )
        if turn is not None:
            await self._note_condensing(turn)
            self._talk.begin(self._history)

    async def _condense_turns(self) -> None:
        """Condense older turns, if the prompt of the next request takes too much of the model's window."""
        if self._limit is not None:
            return
        turn = await self._condenser.condense_turns(
            self._talk,
            self._talk.count_tokens(self._box.list_tools()),
            self._model,
            self._spent,
            self._left,
            self._spent.seconds_left(self._limits),
        )
        if turn is not None:
            await self._note_condensing(turn)

    async def _note_condensing(self, turn: ModelTurn) -> None:
        self._spent = self._spent.with_request(turn.usage, turns=0).with_time(turn.time_s)
        self._count()
        if turn.reply is None and not is_unusable(turn):
            self._limit = await self._take_failure(turn)

    def _find_limit(self) -> LimitName | None:
        prompt_tokens = self._talk.estimate(self._box.list_tools())
        return self._spent.find_limit(self._limits, self._left, prompt_tokens)

    @property
    def _left(self) -> Allowance:
        """The amount that may still be spent on models, by this step and in its chain of calls."""
        return self._budget.allowance or Allowance()

    @property
    def _turn(self) -> str:
        """The path of the current turn."""
        return f"{self._path}/turn-{self._spent.turns}"

    async def _ask(self, *, is_last: bool = False) -> ModelTurn:
        """Make the next request; the last one of a loop keeps the tools and forbids calls."""
        tools = self._box.list_tools()
        prompt_tokens = self._talk.estimate(tools)
        self._sent_tokens = self._talk.count_tokens(tools)
        max_tokens, most = self._spent.ask_for(self._left, prompt_tokens, is_last=is_last)
        request = self._talk.render_request(tools, "none" if is_last else "auto", max_tokens)
        turn = await ask_model(
            self._frame,
            self._model,
            request,
            f"{self._path}/turn-{self._spent.turns + 1}/model",
            retry=self._retry,
            most=most,
            left_s=LAST_ANSWER_S if is_last else self._spent.seconds_left(self._limits),
            is_replaceable=self._plan.role is not None,
        )
        self._spent = self._spent.with_request(turn.usage).with_time(turn.time_s)
        self._count()
        if turn.reply is not None:
            if self._limits.dollars is not None and "cost_usd" not in (turn.usage or {}):
                raise await self._fail(_unpriced(self._model.agent, turn.reply.model))
            self._talk.note_usage(turn.usage, prompt_tokens)
            self._talk.add_reply(turn.reply)
            self._condenser.is_forced = False
            self._last_text = turn.reply.text or self._last_text
        return turn

    async def _call(self, reply: CompletionReply) -> None:
        """Make the calls of a reply, and add their results."""
        turn = CallTurn(
            self._frame,
            self._plan,
            self._box,
            self._repeats,
            self._path,
            self._turn,
            room=self._spent.room_for_calls(self._limits),
            left_s=self._spent.seconds_left(self._limits),
        )
        self._talk.add_results(await turn.answer(reply))
        self._spent = self._spent.with_calls(len(reply.calls)).with_time(turn.time_s)
        self._count()
        self._limit = turn.limit

    def _count(self) -> None:
        """Take over what the budget counts as spent."""
        self._spent = self._spent.with_amount(amount_of(self._budget.usage))

    async def _take_failure(self, turn: ModelTurn) -> LimitName | None:
        """The limit that made a request fail; None if another model takes the place of one that is away.

        Raises StepFailedError for other failures.
        """
        assert turn.failure is not None
        cause = turn.failure.cause
        if cause["data"].get("reason") == "too_long" and self._condenser.shrink(self._sent_tokens):
            return None
        if cause.get("type") == BudgetSpentError.type and cause["data"].get("what") in _BY_BUDGET:
            if cause["data"]["what"] == "money" and self._spent.has_more(self._left, turn.most):
                self._spent = self._spent.with_higher_price()
                return None
            return _BY_BUDGET[cause["data"]["what"]]
        if self._spent.seconds_left(self._limits) <= 0 and cause.get("on_error") == "timeout":
            return "time"
        if cause.get("on_error") == "unreachable" and await self._replace_model():
            return None
        raise StepFailedError(self._path, turn.failure.agent, cause)

    async def _replace_model(self) -> bool:
        """Let another model go on with the next turn; False if there is none, or the model was named.

        The replies of the first one stay in the conversation. Their signatures are not sent, because they are
        those of another provider (`thinking.completion`).
        """
        role, origin = self._plan.role, self._frame.request.origin
        if role is None:
            return False
        self._left_models.add(self._model.agent)
        left = frozenset(self._left_models)

        async def effect() -> Any:
            return as_json(await choose_model(self._frame.tools.caller, origin, role, left))

        facts = {"kind": "choose", "skill": COMPLETE, "below": "", "serves": "model"}
        outcome = await self._frame.context.step(
            f"{self._turn}/choose", effect, timeout_s=PLAN_S, facts=facts
        )
        if outcome.fault is not None:
            return False
        self._model = read_choice(outcome.value)
        self._condenser.use(self._model)
        return True

    async def _end(self, limit: LimitName) -> None:
        """Ask for the last answer and raise StepFailedError, unless the limits were raised since."""
        answer: Any = self._last_text
        if self._spent.may_answer(self._left, self._talk.estimate(self._box.list_tools())):
            self._talk.ask_to_end(limit)
            turn = await self._ask(is_last=True)
            answer = answer if turn.reply is None else read_answer(self._plan, turn.reply)
        await remember(self._frame, self._plan, self._history, answer, self._turn)
        context = self._frame.context
        # the command that goes on takes whole runs, and more of a limit does not help against repeated calls
        may_go_on = "/" not in context.run_id and limit != "repeats"
        run = context.run_id.partition(RUN_ID_MARK)[0] if may_go_on else None
        value = getattr(self._limits, FIELDS[limit], None)
        failure = await self._fail(LimitedError(limit, value, answer, self._spent.to_json(), run))
        extensions = await context.list_extensions()
        extensions = [extension for extension in extensions if extension.step == self._path]
        if len(extensions) <= self._ends:
            raise failure
        await self._extend(extensions[self._ends])

    async def _extend(self, extension: Extension) -> None:
        """Go on with the limits that the run was given when it had ended."""
        self._ends += 1
        self._limits, self._limit = self._limits.extended(extension.limits), None
        self._budget.extend(tokens=self._limits.tokens, dollars=self._limits.dollars)
        facts = {"kind": "extend", "limits": extension.limits, "below": f"/turn-{self._spent.turns}/extend"}
        await add_note(self._frame.context, f"{self._turn}/extend", facts)
        self._talk.go_on()

    async def _fail(self, error: RetinueError) -> StepFailedError:
        place = f"{self._turn}/end"
        return await record_failure(
            self._frame.context, place, error, step=self._path, agent=self._model.agent
        )

    async def _result(self, reply: CompletionReply) -> StepResult:
        answer = read_answer(self._plan, reply)
        await remember(self._frame, self._plan, self._history, answer, self._turn)
        return StepResult(answer, {"agent": self._model.agent, "text": text_of(answer)})


def _unpriced(agent: str, model: str) -> InvalidSettingError:
    """The error of a limit of money whose use cannot be counted."""
    return InvalidSettingError(
        "limits.dollars",
        f"the price of {model or 'the model'} is unknown to agent {agent}",
        remedy=f"set llm.{agent}.prices, or leave the limit out",
    )


def _unfit(path: str, problem: str, reply: CompletionReply) -> OutputInvalidError:
    """The error of an answer that was told to the model in vain, with the answer itself."""
    return OutputInvalidError(f"step {path}", [Problem("", problem)], answer=reply.text or reply.output)
