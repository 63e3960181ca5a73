"""Plays a recorded trace against a digest: a hub of its own, without network to models, answers each call.

The programs of the digest run over an empty state. The models of the team are replaced by agents that give
the recorded replies, and its imports at addresses are left out. A secret has a placeholder as its value.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from retinue.cards.signatures import TrustedKeys
from retinue.client.hub_skills import HubSkills, read_agents
from retinue.client.mesh_client import MeshClient
from retinue.client.run_handle import RunHandle
from retinue.core.errors import InvalidSettingError, RetinueError, StateError, TeamRefusedError
from retinue.guards.masking import mask_value
from retinue.runtime.commands.client import open_client
from retinue.runtime.commands.teams.acceptance import check_programs, check_requires
from retinue.runtime.commands.teams.entrance import wait_until_ready
from retinue.runtime.commands.teams.installed import make_environments
from retinue.runtime.commands.teams.names import PAGE
from retinue.runtime.commands.teams.places import PulledTeam, parse_team_reference, pull_team, unpack
from retinue.runtime.commands.teams.private_hub import private_hub, temporary_state
from retinue.runtime.factories import card_keys
from retinue.runtime.teams.store import ENVIRONMENTS, TeamRow, TeamStore
from retinue.settings import Settings
from retinue.storage.files import make_folder, storage_errors
from retinue.storage.state import State
from retinue.team.consent import Consent, describe_consent
from retinue.team.definition import BudgetTable, TeamCheck
from retinue.team.files import TeamFile
from retinue.team.package import Team
from retinue.team.replay import ReplayedCall, count_verdicts, exit_status, judge
from retinue.team.trace import (
    RecordedAnswer,
    RecordedCall,
    TeamTrace,
    answer_of,
    answer_of_run,
    parse_trace,
)
from retinue.web.http_client import HttpClient

PLACEHOLDER = "replayed"
"""The value of each secret in a replay."""

CALL_WITHIN_S = 120.0
MODELS_WITHIN_S = 30.0
_POLL_S = 0.1
_REPLIES = "replies.json"
_UNANSWERED = "unanswered.log"

_MODEL = """from pathlib import Path
from retinue.testing.recorded_model import RecordedModel
here = Path(__file__).parent
agent = RecordedModel(here / {replies!r}, mode="replay", log=here / {log!r}, **{options!r})
"""


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of each call of a trace with one digest."""

    team: Team
    trace: TeamTrace
    calls: Sequence[ReplayedCall]

    @property
    def status(self) -> int:
        """The exit status: 0 where nothing differs, else 1."""
        return exit_status(self.calls)

    def as_json(self) -> dict[str, Any]:
        """The replay as JSON."""
        return {
            "recorded": {"version": self.trace.version, "digest": self.trace.digest},
            "replayed": {"team": self.team.name, "version": self.team.version, "digest": self.team.digest},
            "counts": {verdict.replace(" ", "_"): n for verdict, n in count_verdicts(self.calls).items()},
            "omitted": self.trace.omitted,
            "calls": [call.as_json() for call in self.calls],
        }


async def replay_team(
    text: str,
    trace_file: Path | None,
    settings: Settings,
    state: State,
    *,
    is_agreed: bool,
    ask: Callable[[Consent], bool],
    echo: Callable[[str], None],
) -> Replay:
    """Play a trace against the digest of a reference; without a file it is that of the digest.

    The digest must be signed with a trusted key, as for ``up``, and somebody must agree that its programs
    run. Raises TeamRefusedError, InvalidSettingError, StateError.
    """
    reference = parse_team_reference(text)
    if is_agreed and not reference.is_pinned:
        remedy = "write REF@sha256:… to agree to one digest"
        raise InvalidSettingError("--yes", "the reference has no digest", remedy=remedy)
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        pulled = await pull_team(reference, settings, state, http)
        signer = _check(pulled, card_keys(settings.signatures, state).trusted())
        row = TeamStore(state).read_rows().get(pulled.team.name, TeamRow(pulled.team.name))
        is_known = pulled.team.digest in row.signers
        if not (
            is_agreed
            or is_known
            or ask(describe_consent(pulled.team, signer, (), await pulled.pull_documents()))
        ):
            raise TeamRefusedError("not_consented", pulled.team.name, "nobody agreed to run it")
        trace = _find_trace(pulled.team, await pulled.pull_files(), trace_file)
        with temporary_state() as own:
            _share_environments(state, own)
            team = await _install(own, pulled)
            models = write_models(own.root.parent, pulled.team, trace)
            calls = await _play(own, team, trace, models, settings, echo)
    return Replay(pulled.team, trace, calls)


async def _play(
    own: State,
    team: Team,
    trace: TeamTrace,
    models: Mapping[str, Path],
    settings: Settings,
    echo: Callable[[str], None],
) -> list[ReplayedCall]:
    """Play the calls of a trace against an installed team, on a hub of its own."""
    async with (
        private_hub(own, own.root.parent, os.environ) as url,
        open_client(settings, own, hub_url=url) as client,
    ):
        await wait_until_ready(TeamStore(own), team, client)
        await _wait_for_models(client, models)
        echo(f"playing {len(trace.calls)} calls against {team.version}")
        return [await play_call(client, call, models) for call in trace.calls]


def _check(pulled: PulledTeam, keys: TrustedKeys) -> str:
    signer = pulled.verify(keys).owner
    check_requires(pulled.team)
    check_programs(pulled.team)
    return signer


def _find_trace(team: Team, files: Sequence[TeamFile], trace_file: Path | None) -> TeamTrace:
    """The trace of a file, else all traces of a digest as one. Raises InvalidSettingError."""
    if trace_file is not None:
        try:
            trace = parse_trace(trace_file.read_bytes(), where=str(trace_file))
        except OSError as error:
            raise InvalidSettingError(
                "--trace", f"{trace_file}: {error.strerror}", remedy="check the path"
            ) from None
        traces = [trace]
    else:
        traces = [parse_trace(file.content, where=file.path) for file in files if file.layer == "traces"]
    if not traces:
        remedy = "record one, and pass it: retinue record-team NAME -o FILE; --trace FILE"
        raise InvalidSettingError("REF", f"{team.name} {team.version} has no traces", remedy=remedy)
    if other := next((trace.team for trace in traces if trace.team != team.name), None):
        problem = f"the trace is one of the team {other}, not of {team.name}"
        raise InvalidSettingError("--trace", problem, remedy="pass a trace of this team")
    calls = [call for trace in traces for call in trace.calls]
    if not calls:
        raise InvalidSettingError(
            "--trace", "the trace has no calls", remedy="record one while calls are made"
        )
    completions = [reply for trace in traces for reply in trace.completions]
    omitted = sum(trace.omitted for trace in traces)
    return traces[0].model_copy(
        update={"calls": tuple(calls), "completions": tuple(completions), "omitted": omitted}
    )


def _share_environments(state: State, own: State) -> None:
    """Let the temporary state use the packages that are installed for locks, and install others there."""
    shared = TeamStore(state).environments
    with storage_errors(shared):
        make_folder(shared)
        (own.root / ENVIRONMENTS).symlink_to(shared)


async def _install(own: State, pulled: PulledTeam) -> Team:
    """Install a digest without its models, its imports at addresses and its check; returns it as it runs."""
    team = pulled.team
    imports = {
        name: table for name, table in team.definition.imports.items() if table.package or table.openapi
    }
    left_out = {"llm": {}, "budget": BudgetTable(), "imports": imports, "check": TeamCheck()}
    definition = team.definition.model_copy(update=left_out)
    locked = {name: team.lock.imports[name] for name in imports}
    offline = replace(team, definition=definition, lock=team.lock.model_copy(update={"imports": locked}))
    store = TeamStore(own)
    await unpack(store, pulled, offline)
    make_environments(store, offline, os.environ)
    kept = store.keep_secrets(team.name, dict.fromkeys(team.definition.secrets, PLACEHOLDER))
    row = TeamRow(team.name, team.digest, team.version, secrets={team.digest: kept})
    store.write_row(replace(row, names=sorted(offline.names)))
    return offline


def write_models(folder: Path, team: Team, trace: TeamTrace) -> Mapping[str, Path]:
    """Write the settings of the hub of a replay, with an agent for each model of the team and of the trace.

    Returns the file of each model that names the requests without a reply.
    """
    names = sorted({*team.definition.llm, *(reply.model for reply in trace.completions)})
    settings, logs = ["[hub]", "models = []", ""], {}
    for number, name in enumerate(names):
        # a trace is data of somebody else: its names make no paths
        place = folder / "models" / str(number)
        place.mkdir(parents=True)
        replies = [
            reply.model_dump(mode="json", exclude={"model"})
            for reply in trace.completions
            if reply.model == name
        ]
        (place / _REPLIES).write_bytes(orjson.dumps({"version": 1, "replies": replies}))
        options: dict[str, Any] = {"name": name}
        if (table := team.definition.llm.get(name)) is not None:
            chosen = {"model": table.model, "context_window": table.context_window, "scores": table.scores}
            options |= {key: value for key, value in chosen.items() if value is not None}
        target = place / "model.py"
        target.write_text(_MODEL.format(replies=_REPLIES, log=_UNANSWERED, options=options), "utf-8")
        settings += ["[[agents]]", f"target = {orjson.dumps(str(target)).decode()}", ""]
        logs[name] = place / _UNANSWERED
    (folder / "retinue.toml").write_text("\n".join(settings), "utf-8")
    return logs


async def _wait_for_models(client: MeshClient, models: Mapping[str, Path]) -> None:
    deadline = time.monotonic() + MODELS_WITHIN_S
    while True:
        reply = await read_agents(client.get, {"limit": PAGE})
        missing = {*models} - {row["name"] for row in reply["agents"] if row.get("status") != "unavailable"}
        if not missing:
            return
        if time.monotonic() > deadline:
            raise StateError(
                f"the recorded model {min(missing)} was not ready within {MODELS_WITHIN_S:.0f} s"
            )
        await asyncio.sleep(_POLL_S)


async def play_call(client: MeshClient, call: RecordedCall, models: Mapping[str, Path]) -> ReplayedCall:
    """Make one call, and compare its answer with the recorded one."""
    before = _read_unanswered(models)
    answer, message = await _ask(client, call)
    if answer is None:
        text = f"its run did not end within {CALL_WITHIN_S:.0f} s; it may wait for a person or a time"
        return ReplayedCall(call, "cannot tell", text)
    # without what a trace does not keep
    answer = answer.model_copy(update={"value": mask_value(answer.value).value})
    after = _read_unanswered(models)
    unanswered = [line for name, lines in after.items() for line in lines[len(before[name]) :]]
    return judge(call, answer, message=message, unanswered=unanswered)


async def _ask(client: MeshClient, call: RecordedCall) -> tuple[RecordedAnswer | None, str]:
    """The new answer of a call and the message of its error; None for a run that does not end."""
    if call.kind == "workflow":
        return await _run_workflow(client, call.skill, call.arguments)
    outcome = await client.ask(call.skill, dict(call.arguments), agent=call.agent, timeout_s=CALL_WITHIN_S)
    return answer_of(outcome), "" if outcome.error is None else outcome.error.message


async def _run_workflow(
    client: MeshClient, workflow: str, arguments: Mapping[str, Any]
) -> tuple[RecordedAnswer | None, str]:
    """As `_ask`, of a run with the ``input`` and ``overrides`` in ``arguments``."""
    hub = HubSkills(client, CALL_WITHIN_S)
    handle = RunHandle(uuid.uuid4().hex, hub)
    try:
        await hub.start_run({**arguments, "workflow": workflow, "run": handle.id}, None)
    except RetinueError as error:
        return RecordedAnswer(error=error.type), error.message
    try:
        async with asyncio.timeout(CALL_WITHIN_S):
            async for _ in handle.events():
                pass
    except TimeoutError:
        await handle.cancel()
        return None, ""
    row = await handle.show()
    fault = row.get("error")
    return answer_of_run(row), str(fault["message"]) if isinstance(fault, Mapping) else ""


def _read_unanswered(models: Mapping[str, Path]) -> dict[str, list[str]]:
    """What each model was asked that the trace has no reply to."""
    return {
        name: path.read_text("utf-8").splitlines() if path.exists() else [] for name, path in models.items()
    }
