"""``retinue run``: start a workflow and follow it to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import json_option, read_object
from retinue.cli.output import print_json
from retinue.cli.progress import RunProgress
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.apps.client import Client

FILE_ENDINGS = frozenset({".yaml", ".yml", ".json"})
WAIT_S = 20.0
CANCEL_S = 5.0


@click.command()
@click.argument("workflow", metavar="FILE|NAME")
@click.argument("given", metavar="INPUT", default="{}")
@json_option
def run(workflow: str, given: str, as_json: bool) -> None:
    """Run a workflow and watch its steps.

    FILE is a definition in YAML or JSON, NAME a stored one (see: retinue workflows). INPUT is a JSON
    object; - reads it from standard input. Each step is shown on standard error as it ends; the
    output is printed as JSON.
    """
    asked = _read_workflow(workflow)
    output = run_command(_run(asked, read_object(given, "INPUT")))
    print_json(output, compact=as_json)


def _read_workflow(text: str) -> str | dict[str, Any]:
    """A stored workflow's name as it is; a file as the checked definition in it."""
    path = Path(text)
    if path.suffix not in FILE_ENDINGS and not path.is_file():
        return text
    from retinue.core.errors import InvalidSettingError
    from retinue.workflows.loading import load_definition

    try:
        source = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidSettingError("FILE", f"no file {text}", remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("FILE", f"{text} cannot be read: {error}", remedy="check it") from error
    return load_definition(source, source=text).to_json()


async def _run(workflow: str | dict[str, Any], given: dict[str, Any]) -> Any:
    async with open_session().client() as client:
        started = await client.get("start_run", {"workflow": workflow, "input": given})
        run_id = str(started["run"])
        with RunProgress(run_id, str(started.get("workflow", ""))) as progress:
            try:
                return await _follow(client, run_id, progress)
            except asyncio.CancelledError:
                # Ctrl-C: the run belongs to this command, so it ends with it, wherever it runs.
                with suppress(asyncio.CancelledError):
                    await client.ask("cancel_run", {"run": run_id}, timeout_s=CANCEL_S)
                raise


async def _follow(client: Client, run_id: str, progress: RunProgress) -> Any:
    after = 0
    while True:
        reply = await client.get(
            "follow_run", {"run": run_id, "after": after, "wait_s": WAIT_S}, timeout_s=WAIT_S + 30
        )
        for event in reply["events"]:
            progress.show(event)
        after = reply["next"]
        if reply["done"]:
            if reply["status"] == "done":
                return reply.get("output")
            raise _failure(reply.get("error") or {}, run_id)


def _failure(fault: Mapping[str, Any], run_id: str) -> Exception:
    """The error that ended a run, as it was before it became data."""
    from retinue.core.errors import CallCancelledError, RemoteFaultError

    if not fault:
        return CallCancelledError(f"run {run_id}")
    data = {**fault.get("data", {}), "type": fault.get("type"), "remedy": fault.get("remedy")}
    return RemoteFaultError("retinue", 0, str(fault.get("message", "")), data)
