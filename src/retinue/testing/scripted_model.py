"""A model agent that replies by a script: for tests and demonstrations of agents that think.

>>> import asyncio
>>> model = ScriptedModel(ModelTurn("Looking.", calls=[("weather", {"city": "Rome"})]), "31 degrees.")
>>> question = {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]}
>>> reply = asyncio.run(model.call("complete", {"messages": [question]}))
>>> reply["text"], reply["calls"][0]["arguments"]
('Looking.', {'city': 'Rome'})
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from retinue.authoring.agent import Agent
from retinue.authoring.offering import names_nearest_option
from retinue.core.call import Part
from retinue.core.errors import InvalidSettingError, ModelError, RetinueError
from retinue.llm.completion import Model, ModelPrompt, ModelReply, OnText, OnUsage, Usage, ignore_usage
from retinue.llm.model_agent import add_skills, describe_agent
from retinue.llm.model_calls import ModelCalls
from retinue.llm.spec import Budget, ModelSpec, Prices
from retinue.llm.spending import Ledger
from retinue.testing.model_script import ModelScript, ModelTurn, Turn, error_of, read_script
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Finish,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from retinue.thinking.condensing import CONDENSE

PROVIDER = "scripted"
NOTES = "These are the notes up to turn"
"""The summary of older turns that a loop asks for begins so; the number of the turn follows."""

_TURN_OF_NOTES = re.compile(re.escape(NOTES) + r" (\d+)")

_MARK = "script"
"""The member of a reply's history that says which turn it was."""

_PIECES = 3
"""The text of a turn is written in so many pieces."""

_POLL_S = 0.02


class ScriptedModel(Agent):
    """A model agent whose replies are those of a script.

    Budget, retries, streaming and limits are those of every model agent. The history in a conversation says
    which turn is next, so that a repeated request gets the same reply, in any process, and any number of
    conversations run at once. ``requests`` are all conversations that it got, repeated ones as well.
    """

    @names_nearest_option
    def __init__(
        self,
        *turns: Turn,
        scripts: Sequence[ModelScript] = (),
        repeats: bool = False,
        last: Turn | None = None,
        name: str = "scripted",
        model: str = "scripted-model",
        context_window: int | None = None,
        scores: Mapping[str, float] | None = None,
        prices: Mapping[str, float] | None = None,
        budget: Budget | None = None,
        max_tokens: int = 8192,
        timeout_s: float = 60.0,
        retries: int = 0,
        log: Path | None = None,
    ) -> None:
        """``prices`` are US dollars for a million tokens: input, output, cached, cache_write.

        Each request adds a line of JSON to the file ``log``: script, turn, attempt, and number of messages.
        """
        own = ModelScript(turns, repeats=repeats) if last is None else ModelScript(turns, "", last, repeats)
        spec = ModelSpec(
            name,
            backend="api",
            model=model,
            context_window=context_window,
            scores=scores or {"planning": 0.5, "execution": 0.5, "review": 0.5},
            prices=None if prices is None else Prices(**prices),
            budget=budget or Budget(),
            max_tokens=max_tokens,
            timeout_s=timeout_s,
            retries=retries,
        )
        super().__init__(**describe_agent(spec, "1.0.0"))
        self._model = ScriptedReplies(spec, (*scripts, own) if turns or not scripts else scripts, log)
        add_skills(self, spec, ModelCalls(spec, self._open, Ledger(None, spec)))

    @classmethod
    def from_file(cls, path: Path | str, **options: Any) -> ScriptedModel:
        """The model of a YAML file with ``turns``, or ``scripts``, and options; ``options`` replace those.

        Raises InvalidSettingError and DefinitionError.
        """
        file = read_script(Path(path))
        return cls(scripts=file.scripts, **{**file.options, **options})

    async def _open(self) -> Model:
        return self._model

    @property
    def requests(self) -> list[CompletionRequest]:
        """The conversations that the model got, in order."""
        return self._model.requests

    def list_results(self) -> list[tuple[str, bool]]:
        """The text of each tool result of the last conversation, and whether it is an error."""
        messages = self.requests[-1].messages if self.requests else ()
        return [
            ("\n".join(str(part.value) for part in result.content if part.kind == "text"), result.is_error)
            for message in messages
            if isinstance(message, ToolMessage)
            for result in message.results
        ]

    def find_rewritten(self) -> list[str]:
        """Requests that change what a request before them in the same conversation held.

        A provider finds the beginning of a conversation in its cache only while it stays the same. A
        conversation that begins again, as after a crash, changes nothing.
        """
        problems: list[str] = []
        latest: dict[bytes, CompletionRequest] = {}
        for number, request in enumerate(self.requests, 1):
            key = orjson.dumps([request.system, request.messages[0].to_json()])
            before = latest.get(key)
            if before is not None:
                if not _is_continued(before.messages, request.messages):
                    problems.append(f"request {number} changes messages of the request before it")
                if not _is_continued(before.tools, request.tools):
                    problems.append(f"request {number} changes tools of the request before it")
            latest[key] = request
        return problems


class ScriptedReplies:
    """The back-end of a `ScriptedModel`."""

    def __init__(self, spec: ModelSpec, scripts: Sequence[ModelScript], log: Path | None) -> None:
        self.requests: list[CompletionRequest] = []
        self._spec = spec
        self._scripts = scripts
        self._log = log
        self._attempts: dict[bytes, int] = {}
        self._places: dict[str, int] = {}

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        request = prompt.conversation or _ask(prompt)
        if prompt.conversation is not None:
            self.requests.append(request)
        if request.system == CONDENSE:
            return self._condense(prompt, request)
        number, place = self._find_place(request)
        digest = orjson.dumps(request.to_json())
        self._attempts[digest] = attempt = self._attempts.get(digest, 0) + 1
        self._write_log(request, number, place, attempt)
        turn = self._find_turn(request, number, place)
        await _wait(turn)
        error = error_of(turn, self._spec.name)
        if error is not None and (turn.times is None or attempt <= turn.times):
            raise error
        reply, usage = self._reply(turn, prompt, request, number, place)
        step = math.ceil(len(reply.text) / _PIECES) or 1
        for at in range(0, len(reply.text), step):
            await on_text(reply.text[at : at + step])
        if turn.stops and (turn.times is None or attempt <= turn.times):
            on_usage(usage)
            raise ModelError(self._spec.name, "unavailable", "the answer ended before it was complete")
        completion = reply if prompt.conversation is not None else None
        return ModelReply(reply.text, usage, reply.model, reply.finish == "length", completion)

    def _condense(self, prompt: ModelPrompt, request: CompletionRequest) -> ModelReply:
        """The reply to a request for a summary, which is no turn of a script.

        It tells the turn that comes next, because all replies of the conversation may be condensed.
        """
        text = _text_of(request.messages[0])
        place = max((place for begin, place in self._places.items() if begin in text), default=0)
        notes = f"{NOTES} {place}."
        usage = Usage(prompt.most_tokens * 3 // 4, len(notes) // 4)
        reply = CompletionReply(notes, (), "stop", self._spec.asks_model, PROVIDER)
        return ModelReply(notes, usage, reply.model, False, reply)

    def _find_place(self, request: CompletionRequest) -> tuple[int, int]:
        """The number of the script, and the number of the turn in it."""
        first = next(message for message in request.messages if isinstance(message, UserMessage))
        begin = "\n".join([request.system, *(str(part.value) for part in first.content)])
        number = next((n for n, script in enumerate(self._scripts) if script.when in begin), None)
        if number is None:
            raise self._problem("no script has its `when` in the first message", "add a script")
        replies = [message.reply for message in request.messages if isinstance(message, AssistantMessage)]
        marks = [reply.history.get(_MARK) for reply in replies if isinstance(reply.history, Mapping)]
        places = [mark[1] for mark in marks if isinstance(mark, list) and mark[0] == number]
        notes = [
            int(turn) for message in request.messages for turn in _TURN_OF_NOTES.findall(_text_of(message))
        ]
        place = max(places) + 1 if places else max(notes, default=len(replies))
        self._places[_text_of(first)] = place + 1
        return number, place

    def _find_turn(self, request: CompletionRequest, number: int, place: int) -> ModelTurn:
        script = self._scripts[number]
        if request.tool_choice == "none" and request.tools:
            turn = script.last
        elif place < len(script.turns):
            turn = script.turns[place]
        elif script.repeats and script.turns:
            turn = script.turns[-1]
        else:
            raise self._problem(f"there is no turn {place + 1}", "add turns, or repeats=True")
        made = turn(request) if callable(turn) else turn
        if isinstance(made, RetinueError):
            return ModelTurn(error=made)
        return ModelTurn(made) if isinstance(made, str) else made

    def _reply(
        self, turn: ModelTurn, prompt: ModelPrompt, request: CompletionRequest, number: int, place: int
    ) -> tuple[CompletionReply, Usage]:
        text = turn.text
        if not text and turn.output is not None:
            text = json.dumps(turn.output, ensure_ascii=False)
        calls = tuple(
            ToolCall(f"call_{place + 1}_{n}", name, arguments)
            for n, (name, arguments) in enumerate(turn.calls, 1)
        )
        written = math.ceil((len(text) + sum(len(json.dumps(call.to_json())) for call in calls)) / 4) + 1
        counts = turn.tokens or (prompt.most_tokens * 3 // 4, written)
        is_cut = turn.finish is None and counts[1] > prompt.max_tokens
        if is_cut:
            text = text[: 4 * prompt.max_tokens]
        finish: Finish = turn.finish or ("length" if is_cut else "calls" if calls else "stop")
        usage = Usage(
            counts[0], min(counts[1], prompt.max_tokens), cached_tokens=counts[2] if len(counts) > 2 else 0
        )
        reply = CompletionReply(
            text,
            calls,
            finish,
            self._spec.asks_model,
            PROVIDER,
            turn.output if finish == "stop" and request.output_schema is not None else None,
            {_MARK: [number, place]},
        )
        return reply, usage

    def _write_log(self, request: CompletionRequest, number: int, place: int, attempt: int) -> None:
        if self._log is None:
            return
        line = {
            "script": number,
            "turn": place + 1,
            "attempt": attempt,
            "messages": len(request.messages),
            "tools": [tool.name for tool in request.tools],
            "tool_choice": request.tool_choice,
        }
        # one write, so that the lines of several processes do not mix
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, orjson.dumps(line) + b"\n")
        finally:
            os.close(descriptor)

    def _problem(self, problem: str, remedy: str) -> InvalidSettingError:
        return InvalidSettingError(f"the script of {self._spec.name}", problem, remedy=remedy)


def _text_of(message: Message) -> str:
    """The text of a message of the user; "" for another one."""
    content = message.content if isinstance(message, UserMessage) else ()
    return "\n".join(str(part.value) for part in content if part.kind == "text")


def _is_continued(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether the longer sequence begins with the shorter one; a repeated conversation begins anew."""
    length = min(len(before), len(after))
    return before[:length] == after[:length]


async def _wait(turn: ModelTurn) -> None:
    if turn.wait_s:
        await asyncio.sleep(turn.wait_s)
    while turn.waits_for is not None and not turn.waits_for.exists():
        await asyncio.sleep(_POLL_S)


def _ask(prompt: ModelPrompt) -> CompletionRequest:
    """A request in words as a conversation."""
    message: Message = UserMessage((Part.text(prompt.task),))
    return CompletionRequest(prompt.instructions, (message,))
