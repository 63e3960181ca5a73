"""A model of a script for tests of the step ``think``, as an agent with the skill ``complete``.

A script has one reply for each request. The number of replies in a request says which one is next, so a
repeated request gets the same reply, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retinue import Agent, Answer
from retinue.thinking.completion import (
    AssistantMessage,
    CompletionReply,
    CompletionRequest,
    Finish,
    ToolCall,
    ToolMessage,
)

Reply = CompletionReply | Exception
Script = Sequence[Reply | Callable[[CompletionRequest], Reply]]


def say(text: str = "", *, output: Any = None, finish: Finish = "stop") -> CompletionReply:
    """A reply without calls."""
    return CompletionReply(text, (), finish, "scripted", "test", output)


def use(*calls: tuple[str, Any], text: str = "", finish: Finish = "calls") -> CompletionReply:
    """A reply with calls, each as (function, arguments)."""
    made = tuple(ToolCall(f"c{n}", name, arguments) for n, (name, arguments) in enumerate(calls, 1))
    return CompletionReply(text, made, finish, "scripted", "test", history={"signature": f"s-{text}"})


class ScriptedModel:
    """An agent that replies by a script; ``requests`` are those that it got, repeated ones as well.

    After the end of the script it says "end". Each reply has used ``tokens`` of input and output.
    """

    def __init__(
        self,
        *script: Reply | Callable[[CompletionRequest], Reply],
        name: str = "thinker",
        tokens: tuple[int, int] = (100, 10),
        cost_usd: float | None = None,
        last: CompletionReply | None = None,
    ) -> None:
        self.requests: list[CompletionRequest] = []
        self.agent = Agent(name, version="1.0.0", scores={"execution": 0.9}, labels={"kind": "model"})
        self._script = script
        self._last = last or say("as far as I came")
        self._usage: dict[str, Any] = {
            "model": "scripted",
            "input_tokens": tokens[0],
            "output_tokens": tokens[1],
        }
        if cost_usd is not None:
            self._usage["cost_usd"] = cost_usd

        @self.agent.skill(roles=["execute"])
        async def execute(prompt: str) -> str:
            """Does a task."""
            return "done"

        @self.agent.skill
        async def complete(
            system: str,
            messages: list[Any],
            tools: list[Any] | None = None,
            tool_choice: str = "auto",
            output_schema: dict[str, Any] | None = None,
            max_tokens: int | None = None,
        ) -> Answer:
            """Replies to a conversation."""
            given = {
                "system": system,
                "messages": messages,
                "tools": tools,
                "tool_choice": tool_choice,
                "output_schema": output_schema,
                "max_tokens": max_tokens,
            }
            request = CompletionRequest.from_json(given)
            self.requests.append(request)
            return Answer(self._reply(request).to_json(), usage=self._usage)

    def _reply(self, request: CompletionRequest) -> CompletionReply:
        if request.tool_choice == "none":
            return self._last
        place = sum(isinstance(message, AssistantMessage) for message in request.messages)
        reply = self._script[place] if place < len(self._script) else say("end")
        if not isinstance(reply, CompletionReply | Exception):
            reply = reply(request)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def list_results(self) -> list[str]:
        """The texts of all results of the last request, in order."""
        return [text for text, _ in self.list_outcomes()]

    def list_outcomes(self) -> list[tuple[str, bool]]:
        """The text of each result of the last request, and whether it is an error."""
        return [
            (str(result.content[0].value), result.is_error)
            for message in self.requests[-1].messages
            if isinstance(message, ToolMessage)
            for result in message.results
        ]


def think(prompt: str = "Do it", **options: Any) -> Mapping[str, Any]:
    """A workflow with one step ``think`` of the id ``research``."""
    return {"name": "w", "steps": [{"id": "research", "think": {"prompt": prompt, **options}}]}
