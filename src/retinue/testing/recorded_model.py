"""A model agent that plays back the replies of a real model, and records them first.

The file of the replies holds no key, so it can be kept beside the tests. A request is found in it by a digest
of its instructions, messages, tools and output schema.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import orjson

from retinue.authoring.agent import Agent
from retinue.authoring.offering import names_nearest_option
from retinue.core.call import Part
from retinue.core.errors import InvalidParametersError, InvalidSettingError
from retinue.core.text import hide_secrets
from retinue.llm.completion import (
    HIDDEN,
    Model,
    ModelPrompt,
    ModelReply,
    OnText,
    OnUsage,
    Usage,
    ignore_usage,
)
from retinue.llm.model_agent import add_skills, describe_agent
from retinue.llm.model_calls import ModelCalls
from retinue.llm.spec import SEED_MODELS, ModelSpec, Provider, Unavailable, check_spec, find_backend
from retinue.llm.spending import Ledger
from retinue.storage.files import replace_file
from retinue.thinking.completion import CompletionReply, CompletionRequest, UserMessage

Mode = Literal["once", "replay", "record"]
_VERSION = 1
_SHOWN = 200
"""Characters of the last message that stand beside a reply, for people."""


class RecordedModel(Agent):
    """A model agent over a file of replies.

    With ``mode`` "once" an absent file is recorded and an existing one is played back; "replay" never asks
    the model, "record" asks for each request that the file does not have. ``recorded`` and ``replayed`` count
    the replies.
    """

    @names_nearest_option
    def __init__(
        self,
        path: Path | str,
        *,
        provider: Provider = "anthropic",
        model: str | None = None,
        base_url: str | None = None,
        api_key_env: str | None = None,
        name: str = "recorded",
        context_window: int | None = None,
        scores: Mapping[str, float] | None = None,
        max_tokens: int = 8192,
        retries: int = 3,
        mode: Mode = "once",
        log: Path | None = None,
    ) -> None:
        """The options are those of ``[llm.NAME]``. A request without a reply adds a line to the file ``log``,
        which says where it differs from the recorded ones.

        Raises InvalidSettingError for a damaged file, and for a recording without a key.
        """
        spec = check_spec(
            ModelSpec(
                name,
                provider,
                "api",
                model=model,
                base_url=base_url,
                api_key_env=api_key_env,
                context_window=context_window,
                scores=scores or SEED_MODELS["claude"].scores,
                max_tokens=max_tokens,
                retries=retries,
            )
        )
        path = Path(path)
        is_recording = mode == "record" or (mode == "once" and not path.exists())
        if is_recording:
            backend = find_backend(spec, os.environ)
            if isinstance(backend, Unavailable):
                raise InvalidSettingError(f"the recording {path}", backend.reason, remedy=backend.remedy)
        super().__init__(**describe_agent(spec, version("retinue")))
        self._replies = RecordedReplies(spec, path, is_recording, log)
        add_skills(self, spec, ModelCalls(spec, self._open, Ledger(None, spec)))

    async def _open(self) -> Model:
        return self._replies

    @property
    def recorded(self) -> int:
        """How many replies came from the model."""
        return self._replies.recorded

    @property
    def replayed(self) -> int:
        """How many replies came from the file."""
        return self._replies.replayed

    async def aclose(self) -> None:
        """Close the connections to the model."""
        await self._replies.aclose()


class RecordedReplies:
    """The back-end of a `RecordedModel`."""

    def __init__(self, spec: ModelSpec, path: Path, is_recording: bool, log: Path | None = None) -> None:
        self._spec = spec
        self._path = path
        self._is_recording = is_recording
        self._rows = _read_rows(path)
        self._log = log
        self._model: Any = None
        self._opening = asyncio.Lock()
        self.recorded = 0
        self.replayed = 0

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        request = prompt.conversation or CompletionRequest(
            prompt.instructions, (UserMessage((Part.text(prompt.task),)),)
        )
        digests = request.digests()
        row = next((row for row in self._rows if row["request"] == digests), None)
        if row is not None:
            self.replayed += 1
            reply = self._read_reply(row, prompt)
            await on_text(reply.text)
            return reply
        if not self._is_recording:
            difference = self._find_difference(digests)
            if self._log is not None:
                with self._log.open("a", encoding="utf-8") as file:
                    file.write(f"{difference}\n")
            raise self._explain(difference)
        model = await self._open_model()
        row = self._write_row(digests, request, await model.complete(prompt, on_text, on_usage))
        self.recorded += 1
        self._rows.append(row)
        self._save()
        # as it will be played back: the next request holds this reply
        return self._read_reply(row, prompt)

    async def aclose(self) -> None:
        if self._model is not None:
            await self._model.aclose()

    async def _open_model(self) -> Model:
        async with self._opening:
            if self._model is None:
                # seconds and 80 MB, which a replay does not need
                from retinue.llm.api_model import ApiModel

                self._model = ApiModel(self._spec, self._spec.find_key(os.environ))
            model: Model = self._model
            return model

    def _read_reply(self, row: Mapping[str, Any], prompt: ModelPrompt) -> ModelReply:
        try:
            reply = CompletionReply.from_json(row["reply"])
            usage = Usage(**row["usage"])
        except (InvalidParametersError, TypeError, KeyError) as error:
            raise _damaged(self._path, str(error)) from None
        completion = reply if prompt.conversation is not None else None
        return ModelReply(reply.text, usage, reply.model, reply.finish == "length", completion)

    def _save(self) -> None:
        document = {
            "version": _VERSION,
            "provider": self._spec.provider,
            "model": self._spec.asks_model,
            "replies": self._rows,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n", mode=0o644)

    def _write_row(
        self, digests: Mapping[str, Any], request: CompletionRequest, reply: ModelReply
    ) -> dict[str, Any]:
        completion = reply.completion or CompletionReply(reply.text, (), "stop", reply.model, "")
        usage = reply.usage
        row = {
            "asks": hide_secrets(orjson.dumps(request.messages[-1].to_json()).decode())[:_SHOWN],
            "request": dict(digests),
            "reply": completion.to_json(),
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            },
        }
        text, key = orjson.dumps(row).decode(), self._spec.find_key(os.environ)
        stored: dict[str, Any] = orjson.loads(text.replace(key, HIDDEN) if key else text)
        return stored

    def _explain(self, difference: str) -> InvalidSettingError:
        problem = f"it has no reply to this request, which differs in {difference}"
        remedy = "delete the file and record it again, with a key of the model"
        return InvalidSettingError(
            f"the recording {self._path}", problem if self._rows else "it has no replies", remedy=remedy
        )

    def _find_difference(self, digests: Mapping[str, Any]) -> str:
        """Where a request differs from the recorded one that is most like it."""
        if not self._rows:
            return "everything, because there are no replies"
        digest = digests["messages"]

        def count_equal(row: Mapping[str, Any]) -> tuple[int, int]:
            """How many messages are the same, and how near the numbers of messages are."""
            recorded = row["request"]["messages"]
            pairs = zip(recorded, digest, strict=False)
            shared = next(
                (n for n, (old, new) in enumerate(pairs) if old != new), min(len(recorded), len(digest))
            )
            return shared, -abs(len(recorded) - len(digest))

        nearest = max(self._rows, key=count_equal)
        shared, _ = count_equal(nearest)
        other = [key for key in digests if key != "messages" and nearest["request"].get(key) != digests[key]]
        if shared < min(len(nearest["request"]["messages"]), len(digest)):
            other.append(f"messages[{shared}]")
        return ", ".join(other) or "the number of messages"


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        document = orjson.loads(path.read_bytes())
        rows: Sequence[Any] = document["replies"]
        if document["version"] != _VERSION or not all(row["request"]["messages"] for row in rows):
            raise ValueError("another version")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, str(error)) from None
    return [dict(row) for row in rows]


def _damaged(path: Path, problem: str) -> InvalidSettingError:
    return InvalidSettingError(
        f"the recording {path}", f"it cannot be read: {problem}", remedy="delete the file and record it again"
    )
