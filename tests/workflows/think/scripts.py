"""A scripted model at a bench, where the offers of a mesh can change during a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retinue.thinking.completion import AssistantMessage, CompletionReply, CompletionRequest
from tests.support.thinking import say
from tests.workflows.running import Bench

Reply = CompletionReply | Exception | Callable[[], CompletionReply]


def add_model(bench: Bench, *script: Reply, name: str = "thinker") -> list[CompletionRequest]:
    """Offer a model that replies by a script, as `ScriptedModel`; returns the requests that it gets."""
    requests: list[CompletionRequest] = []

    async def complete(arguments: Any) -> Any:
        request = CompletionRequest.from_json(arguments)
        requests.append(request)
        return _reply(request).to_json()

    def _reply(request: CompletionRequest) -> CompletionReply:
        if request.tool_choice == "none":
            return say("as far as I came")
        replies = [one.reply for one in request.messages if isinstance(one, AssistantMessage)]
        reply = script[sum(one.text != "as far as I came" for one in replies)]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, CompletionReply) else reply()

    bench.offer("execute", "done", agent=name, roles=["execute"])
    bench.caller.offer("complete", complete, agent=name)
    return requests
