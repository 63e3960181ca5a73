"""``retinue runs``, ``resume``, ``cancel``, ``rerun``, ``signal``: list, follow and control runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table, render_usage_line, working
from retinue.cli.session import ask_hub, open_session, run_command

if TYPE_CHECKING:
    from retinue.runtime.commands.client import RunFollower

STATUSES = ("running", "done", "failed", "cancelled", "limited")
_SHOWN_CHARACTERS = 200


@click.command()
@click.argument("run", metavar="[ID]", required=False)
@click.option("--status", type=click.Choice(STATUSES), help="Only runs with this status.")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Maximum number of runs to list.",
)
@click.option("--follow", is_flag=True, help="Follow run ID until it ends.")
@hub_option
@json_option
def runs(
    run: str | None,
    status: str | None,
    workflow: str | None,
    limit: int,
    follow: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """List runs, or show one as a tree of its steps.

    The tree shows each step with its agent, duration and attempts, its arguments, and its output or error.
    --follow shows each step as it ends, then prints the output; Ctrl-C does not stop the run.
    """
    if run is None:
        arguments = {"status": status, "workflow": workflow, "limit": limit}
        reply = ask_hub("list_runs", {key: value for key, value in arguments.items() if value}, hub)
        is_filtered = status is not None or workflow is not None
        _print_list(reply, as_json, is_filtered=is_filtered)
    elif follow:
        print_json(run_command(_follow(lambda follower: follower.follow(run), hub)), compact=as_json)
    else:
        shown = ask_hub("show_run", {"run": run}, hub)
        if as_json:
            print_json(shown)
        else:
            click.echo("\n".join(_draw(shown)))


@click.command()
@click.argument("run", metavar="ID")
@click.option(
    "--limit", "limits", metavar="NAME=N,…", help="Higher limits for a run that reached one of its limits."
)
@hub_option
@json_option
def resume(run: str, limits: str | None, hub: str | None, as_json: bool) -> None:
    """Resume a run.

    Continues a run that was cancelled or whose process died. Completed steps do not run again. Of a run that
    failed with steps still to be undone, it undoes these. A run with the status limited goes on with --limit,
    such as --limit turns=20,dollars=1; the names are turns, calls, tokens, dollars and time. Prints the steps
    and the output as "retinue run" does.
    """
    if limits is None:
        value = run_command(_follow(lambda follower: follower.resume(run), hub))
    else:
        raised = _read_limits(limits)
        value = run_command(_follow(lambda follower: follower.extend(run, raised), hub))
    print_json(value, compact=as_json)


def _read_limits(text: str) -> dict[str, Any]:
    """The limits of an option, as ``turns=20,time=30m``."""
    limits: dict[str, Any] = {}
    for part in text.split(","):
        name, mark, value = part.strip().partition("=")
        if not (name and mark and value):
            raise click.BadParameter(f"{part!r} is no limit: write turns=20", param_hint="--limit")
        limits[name] = value if name == "time" else _read_value(value)
    return limits


@click.command()
@click.argument("run", metavar="ID")
@click.option("--from", "from_step", metavar="STEP", required=True, help="First step to run again.")
@hub_option
@json_option
def rerun(run: str, from_step: str, hub: str | None, as_json: bool) -> None:
    """Run again from a step, as a new run.

    The recorded results before STEP are kept. Prints the steps and the output as "retinue run" does.
    """
    print_json(run_command(_follow(lambda follower: follower.rerun(run, from_step), hub)), compact=as_json)


@click.command()
@click.argument("run", metavar="ID")
@hub_option
@json_option
def cancel(run: str, hub: str | None, as_json: bool) -> None:
    """Cancel a run, its branches and the calls in flight.

    Lists the effects that already happened, and of a run that was undoing its steps, what is left to be
    undone. A run that has ended is left as it is.
    """
    from retinue.runtime.commands.client import describe_effects, describe_way_on

    reply = ask_hub("cancel_run", {"run": run}, hub)
    if as_json:
        print_json(reply)
        return
    click.echo(f"{reply['run']}  {reply['status']}")
    for line in describe_effects(reply.get("effects")):
        note(line)
    if reply["status"] == "cancelled":
        note(describe_way_on(run, reply.get("effects")))


@click.command()
@click.argument("run", metavar="ID")
@click.argument("topic")
@click.argument("value", metavar="[VALUE]", default="true")
@click.option(
    "--step", metavar="STEP", help="Step that receives the signal, as in the tree, if several wait."
)
@hub_option
@json_option
def signal(run: str, topic: str, value: str, step: str | None, hub: str | None, as_json: bool) -> None:
    """Send a signal to a step that waits, such as an approval.

    VALUE is parsed as JSON, otherwise taken as a string.
    """
    arguments = {"run": run, "topic": topic, "value": _read_value(value)}
    reply = ask_hub("signal_run", arguments if step is None else arguments | {"step": step}, hub)
    if as_json:
        print_json(reply)
    elif reply["step"] is None:
        note(f"stored until a step of {run} waits for {topic}")
    else:
        note(f"sent to step {reply['step']}")


def _read_value(text: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _follow(ask: Callable[[RunFollower], Any], hub: str | None) -> Any:
    from retinue.runtime.commands.client import RunFollower

    async with open_session().hub_client(hub) as client:
        with working("running") as echo:
            return await ask(RunFollower(client, echo, echo.now, shows_reports=echo.is_live))


def _print_list(reply: Mapping[str, Any], as_json: bool, *, is_filtered: bool) -> None:
    if as_json:
        print_json(reply)
        return
    rows = reply["runs"]
    if not rows:
        note("no such runs" if is_filtered else "no runs yet; start one: retinue run WORKFLOW")
        return
    print_table(
        ("RUN", "WORKFLOW", "STATUS", "STARTED", "TOOK"),
        [
            (
                row["run"],
                row["workflow"],
                _describe_status(row),
                *_read_times(row),
            )
            for row in rows
        ],
    )


def _describe_status(row: Mapping[str, Any]) -> str:
    if "missing_code" in row:
        return "waiting: its code"
    if "waits_for" in row:
        return f"waiting: {', '.join(row['waits_for'])}"
    return f"{row['status']}, undo incomplete" if "undo" in row else str(row["status"])


def _draw(shown: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for the run and for each step, nested steps indented."""
    began, took = _read_times(shown)
    yield f"{shown['workflow']}  {shown['status']}  {shown['run']}  {began}{took and f'  {took}'}"
    if "forked_from" in shown:
        yield f"  rerun of {shown['forked_from']}"
    if "missing_code" in shown:
        yield f"  waits for its code, {clean(shown['missing_code'])}"
    for node in shown["steps"]:
        yield from _draw_step(node, 1)
    if "log" in shown:
        from retinue.runtime.commands.client import describe_log_line
    for line in shown.get("log", ()):
        yield f"  {describe_log_line(line)}"
    if "error" in shown:
        yield f"error: {clean(shown['error']['message'])}"
        for compensation in shown["error"].get("data", {}).get("compensated", ()):
            ended = (
                "undone"
                if compensation["ok"]
                else f"not undone: {clean(compensation['error'].get('message'))}"
            )
            yield f"  {compensation['step']}  {ended}"
        if shown["status"] == "limited":
            limited = shown["error"]["data"]["cause"]
            yield f"  last answer: {_shorten(limited['data'].get('answer'))}"
            yield f"  {clean(limited['remedy'])}"
        if "undo" in shown:
            yield f"  finish the undoing: retinue resume {shown['run']}"
    if "usage" in shown:
        yield f"models: {render_usage_line(shown['usage'])}"
    if "output" in shown:
        yield f"output: {_shorten(shown['output'])}"


def _draw_step(node: Mapping[str, Any], depth: int) -> Iterator[str]:
    parts = [f"{'  ' * depth}{node['step']}", node["status"]]
    parts += [clean(node[key]) for key in ("skill", "agent") if node.get(key)]
    if node.get("duration_ms") is not None:
        parts.append(_render_ms(node["duration_ms"]))
    attempts = node.get("attempts", ())
    if len(attempts) > 1:
        parts.append(f"{len(attempts)} attempts")
    if node.get("handled"):
        parts.append("handled by on_error")
    yield "  ".join(parts)
    inner = "  " * (depth + 2)
    if node.get("input") is not None:
        yield f"{inner}input: {_shorten(node['input'])}"
    for attempt in attempts if len(attempts) > 1 else ():
        yield f"{inner}{_draw_attempt(attempt)}"
    if node.get("until"):
        yield f"{inner}until {clean(node['until'])}"
    elif node["status"] == "waiting":
        asked = f": {clean(node['message'])}" if node.get("message") else ""
        from retinue.runtime.commands.client import describe_value

        yield f"{inner}waits for {clean(node.get('topic'))}{asked}{describe_value(node.get('schema'))}"
    if node.get("warning"):
        yield f"{inner}warning: {clean(node['warning'])}"
    if "error" in node:
        yield f"{inner}failed: {clean(node['error'].get('message'))}"
    elif "output" in node:
        yield f"{inner}output: {_shorten(node['output'])}"
    for nested in node.get("steps", ()):
        yield from _draw_step(nested, depth + 1)


def _draw_attempt(attempt: Mapping[str, Any]) -> str:
    """One line for an attempt: its agent and its end; no end if the node died."""
    if attempt.get("duration_ms") is None:
        end = "did not end"
    elif "error" in attempt:
        end = f"{_render_ms(attempt['duration_ms'])}  {clean(attempt['error'].get('message'))}"
    else:
        end = _render_ms(attempt["duration_ms"])
    return f"attempt: {clean(attempt.get('agent'))}  {end}"


def _read_times(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the start of a run and, if it has ended, its duration."""
    began = datetime.fromtimestamp(row["started_at"]).strftime("%Y-%m-%d %H:%M:%S")
    return began, _render_ms(row["duration_ms"]) if "duration_ms" in row else ""


def _render_ms(duration_ms: float) -> str:
    from retinue.core.durations import render_elapsed

    return render_elapsed(duration_ms / 1000)


def _shorten(value: Any) -> str:
    import orjson

    text = clean(orjson.dumps(value).decode())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
