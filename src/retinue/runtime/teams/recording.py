"""Records the calls of one caller to a team, and the replies of models in them, while a command asks for it.

``teams/recording.json`` says what is recorded and until when. The hub appends a line for each call to a file
of its own below ``teams/recording-ID``, which only the owner of the state reads. Before that it masks
secrets and personal data. A run of a workflow has a line when it starts; the command reads how it ends. An
empty file marks its trace, so that every process of the hub writes the replies of models in it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from cachetools import LRUCache

from retinue.core.call import Call, Outcome
from retinue.core.errors import InvalidParametersError
from retinue.core.text import hide_secrets
from retinue.guards.masking import mask_value
from retinue.mesh.directory.versions import folder_of
from retinue.mesh.observing.events import CallEndedEvent, Event
from retinue.runtime.teams.store import TEAMS, TeamStore
from retinue.storage.state import State
from retinue.team.trace import Kind, RecordedAnswer, RecordedCall, RecordedCompletion, answer_of
from retinue.thinking.completion import COMPLETE, CompletionRequest
from retinue.workflows.definitions.definition import AUTO

MARKER = "recording.json"
MAX_ROW_BYTES = 1024 * 1024
"""A call whose row is larger is left out."""

REPLIES = b'{"completions":'
"""The beginning of a row that has only replies of models, of a run that has a row of its own."""

_KEPT_TRACES = 1_000
_MIN_SECRET_CHARS = 4
_SHOWN_CHARACTERS = 200
_HIDDEN = "[secret]"

_STARTS = ("start_run", "orchestrate_workflow")
"""Skills of the hub that run a workflow; the first one returns before its end."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The calls of ``caller`` to the agents ``names``, and the runs of ``workflows`` that it starts.

    They are recorded until ``until``, seconds since 1970.
    """

    id: str
    team: str
    names: Sequence[str]
    workflows: Sequence[str]
    caller: str
    until: float

    def folder(self, store: TeamStore) -> Path:
        """Where the hub writes the calls."""
        return store.root / f"recording-{self.id}"

    def render(self) -> bytes:
        """The bytes of the marker."""
        return orjson.dumps(asdict(self))


def marker_of(state: State) -> Path:
    """The file that says what is recorded."""
    return state.root / TEAMS / MARKER


def read_recording(state: State) -> Recording | None:
    """What is recorded now; None where nothing is, or its time is over."""
    try:
        recording = Recording(**orjson.loads(marker_of(state).read_bytes()))
        return recording if time.time() < recording.until else None
    except (OSError, ValueError, TypeError):
        return None


@dataclass(slots=True)
class CallRecorder:
    """Observes the calls of a hub and appends those of a recording to ``file``.

    ``secrets`` are values that never appear in the file.
    """

    recording: Recording
    file: Path
    secrets: Sequence[str]
    _completions: LRUCache[str, list[dict[str, Any]]] = field(default_factory=lambda: LRUCache(_KEPT_TRACES))

    def begin(self) -> None:
        """Create the file, by which the command knows that this process records."""
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        self.file.touch(mode=0o600)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, CallEndedEvent) or time.time() >= self.recording.until:
            return
        call, outcome = event.call, event.outcome
        if call.skill == COMPLETE and outcome.status == "done":
            self._completions.setdefault(call.trace.id, []).append(self._render_completion(call, outcome))
            if self._mark_of(call).exists():
                self._write({}, call)
        elif (
            call.principal.id == self.recording.caller
            and not call.trace.depth
            and outcome.status in ("done", "failed")
        ):
            if call.skill in _STARTS:
                self._record_start(call, outcome)
            elif self._is_of_team(event):
                name = outcome.agent or ""
                self._write(self._render("skill", name, call.skill, call.arguments, answer_of(outcome)), call)

    def _is_of_team(self, event: CallEndedEvent) -> bool:
        """Whether an agent or import of the team was called; those of other teams may have its name."""
        place = event.place
        is_own = place is not None and folder_of(place) == self.recording.team
        return is_own and event.outcome.agent in self.recording.names

    def _record_start(self, call: Call, outcome: Outcome) -> None:
        """Record that a workflow of the team was run, or begins to run."""
        fields = call.arguments if isinstance(call.arguments, Mapping) else {}
        value = outcome.value if isinstance(outcome.value, Mapping) else {}
        is_begun = call.skill == _STARTS[0] and outcome.error is None
        is_chosen = is_begun and fields.get("workflow") == AUTO
        name = value.get("workflow") if is_chosen else fields.get("workflow")
        if not isinstance(name, str) or name not in self.recording.workflows:
            return
        arguments = {key: fields[key] for key in ("input", "overrides") if fields.get(key) is not None}
        answer = answer_of(outcome)
        if outcome.error is None:
            answer = RecordedAnswer(value=None if is_begun else value.get("output"))
        row = self._render("workflow", "", name, arguments, answer)
        if is_begun:
            row["run"] = value.get("run")
            self._mark_of(call).touch(mode=0o600)
        self._write(row, call)

    def _mark_of(self, call: Call) -> Path:
        """The file that tells all processes that the trace of a call is one of a recorded run."""
        return self.file.parent / f"run-{hashlib.sha256(call.trace.id.encode()).hexdigest()}"

    def _write(self, row: dict[str, Any], call: Call) -> None:
        """Append a row with the replies of models in the trace of a call that no row has yet."""
        row["completions"] = self._completions.pop(call.trace.id, [])
        line = orjson.dumps(row) + b"\n"
        self._append(line if len(line) <= MAX_ROW_BYTES else b'{"omitted":1}\n')

    def _render(
        self, kind: Kind, agent: str, skill: str, sent: Any, answer: RecordedAnswer
    ) -> dict[str, Any]:
        arguments, paths = mask(sent, self.secrets)
        recorded = RecordedCall(
            kind=kind,
            agent=agent,
            skill=skill,
            arguments=arguments if isinstance(arguments, Mapping) else {},
            masked=tuple(f"arguments.{path}" for path in paths),
            answer=RecordedAnswer(),
        )
        return {"call": with_answer(recorded, answer, self.secrets).model_dump(mode="json")}

    def _render_completion(self, call: Call, outcome: Outcome) -> dict[str, Any]:
        """The reply of a model; {} for one that cannot be played back as it was."""
        try:
            request = CompletionRequest.from_json(call.arguments)
        except InvalidParametersError:
            return {}
        reply, hidden = mask(outcome.value, self.secrets)
        if hidden or not isinstance(reply, Mapping):
            return {}
        asks, _ = mask(hide_secrets(orjson.dumps(request.messages[-1].to_json()).decode()), self.secrets)
        usage = outcome.usage or {}
        return RecordedCompletion(
            model=outcome.agent or "",
            asks=asks[:_SHOWN_CHARACTERS],
            request=request.digests(),
            reply=reply,
            usage={
                key: usage[key] for key in ("input_tokens", "output_tokens") if type(usage.get(key)) is int
            },
        ).model_dump(mode="json")

    def _append(self, line: bytes) -> None:
        try:
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return  # the command has ended, and has removed it
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def with_answer(call: RecordedCall, answer: RecordedAnswer, secrets: Sequence[str]) -> RecordedCall:
    """The call with its answer, in which secrets and personal data are masked."""
    value, paths = mask(answer.value, secrets)
    masked = (*call.masked, *(f"result.{path}" for path in paths))
    return call.model_copy(update={"answer": answer.model_copy(update={"value": value}), "masked": masked})


def mask(value: Any, secrets: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """The value without ``secrets`` and personal data, and the paths where there were some."""
    paths: list[str] = []
    hidden = _hide(value, [text for text in secrets if len(text) >= _MIN_SECRET_CHARS], (), paths)
    masked = mask_value(hidden)
    return masked.value, tuple(dict.fromkeys([*paths, *masked.paths]))


def _hide(value: Any, secrets: Sequence[str], path: tuple[str, ...], paths: list[str]) -> Any:
    if isinstance(value, str):
        hidden = value
        for secret in secrets:
            hidden = hidden.replace(secret, _HIDDEN)
        if hidden != value:
            paths.append(".".join(path))
        return hidden
    if isinstance(value, Mapping):
        return {key: _hide(inner, secrets, (*path, str(key)), paths) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(inner, secrets, (*path, str(place)), paths) for place, inner in enumerate(value)]
    return value


def open_recorder(state: State) -> CallRecorder | None:
    """The recorder of what is recorded now; None where nothing is."""
    recording = read_recording(state)
    if recording is None:
        return None
    store = TeamStore(state)
    file = recording.folder(store) / f"{os.getpid()}.jsonl"
    recorder = CallRecorder(recording, file, list_secrets(store, recording.team))
    recorder.begin()
    return recorder


def list_secrets(store: TeamStore, team: str) -> list[str]:
    """The values of the secrets of the digest that runs."""
    row = store.read_rows().get(team)
    return [] if row is None else [*store.read_secrets(row, row.active or "").values()]
