"""``retinue orchestrate`` gives a task to agents, ``capabilities`` ranks them, ``cache`` clears answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import ask_hub, open_session, run_command
from retinue.core.errors import NoModelError

if TYPE_CHECKING:
    from retinue.cli.terminal_channel import TerminalChannel

DEFAULT_TIMEOUT_MS = 300_000
"""Specification 3.3."""

_ALLOWANCE_S = 10.0
"""Added to the time limit of the hub, whose error says more than that of the command."""


@click.command()
@click.argument("prompt")
@click.option("--agent", metavar="NAME", shell_complete=complete_agent, help="Preferred agent.")
@click.option("--workflow", metavar="NAME", help="Workflow; default: chosen by the prompt.")
@click.option("--role", metavar="ROLE", help="Role of the agent: plan, execute or review.")
@click.option("--cache/--no-cache", default=True, help="Take a cached answer if there is one.")
@click.option(
    "--timeout",
    "timeout_ms",
    metavar="MS",
    type=click.FloatRange(min=1),
    default=DEFAULT_TIMEOUT_MS,
    show_default=True,
    help="Time limit in milliseconds.",
)
@click.option("--retries", metavar="N", type=click.IntRange(0, 19), help="Further attempts of a failed step.")
@click.option("--parallel/--sequential", default=None, help="Run independent steps at once, or never.")
@click.option("--session", metavar="NAME", help="Continue this conversation, or begin it.")
@click.option("--id", "run_id", metavar="ID", help="Id of the run; the same id picks the run up.")
@hub_option
@json_option
def orchestrate(
    prompt: str,
    agent: str | None,
    workflow: str | None,
    role: str | None,
    cache: bool,
    timeout_ms: float,
    retries: int | None,
    parallel: bool | None,
    session: str | None,
    run_id: str | None,
    hub: str | None,
    as_json: bool,
) -> None:
    """Hand a task to the agents of the mesh.

    Chooses a workflow and its agents, and prints the result; steps are shown on standard error as they begin
    and end, and their text in a terminal while it is written. - reads PROMPT from standard input.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    preferences = {"agent": agent, "workflow": workflow, "role": role, "cache": cache}
    options = {"timeout": timeout_ms, "retries": retries, "parallel": parallel}
    arguments = {
        "prompt": text,
        "preferences": _given(preferences),
        "options": _given(options),
        **_given({"session": session, "run": run_id}),
    }
    from retinue.cli.terminal_channel import TerminalChannel

    is_terminal = sys.stderr.isatty() and sys.stdout.isatty()
    channel = TerminalChannel(asks=False, shows_text=is_terminal and not as_json)
    result = run_command(_orchestrate(arguments, timeout_ms / 1000 + _ALLOWANCE_S, hub, channel))
    if as_json:
        print_json(result)
        return
    output = result["output"]
    if channel.has_shown(output):
        pass  # it is on the screen
    elif isinstance(output, str):
        click.echo(output)
    else:
        print_json(output)
    for warning in result["metadata"].get("warnings", ()):
        warn(warning)
    note(_describe(result))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _describe(result: Mapping[str, Any]) -> str:
    """One line: the workflow, its agents, the time and the cost."""
    from retinue.core.durations import render_elapsed

    parts = [result["workflow"], ", ".join(result["agents"]), render_elapsed(result["duration"] / 1000)]
    if result["fromCache"]:
        parts.append("from the cache")
    usage = result.get("usage") or {}
    tokens = sum(number for key, number in usage.items() if key.endswith("_tokens"))
    if tokens:
        parts.append(f"{tokens:,} tokens")
    if "cost_usd" in usage:
        parts.append(f"${usage['cost_usd']:.4f}")
    return " · ".join(clean(part) for part in parts if part)


async def _orchestrate(
    asked: Mapping[str, Any], timeout_s: float, hub: str | None, channel: TerminalChannel
) -> dict[str, Any]:
    is_interactive = sys.stderr.isatty()
    async with open_session().hub_client(hub) as client:
        options: dict[str, Any] = {"timeout_s": timeout_s}
        if is_interactive or client.hub_url is None:
            options["channel"] = channel
        try:
            result: dict[str, Any] = await client.get("orchestrate", asked, **options)
        except NoModelError as error:
            if client.hub_url is None:
                error.remedy = "start the hub, which starts the language models: retinue hub"
            raise
        return result


@click.command()
@click.argument("task", default="")
@click.option("--language", metavar="NAME", help="Programming language that is needed.")
@click.option("--context-size", metavar="N", type=click.IntRange(min=1), help="Tokens of context needed.")
@click.option("--role", metavar="ROLE", help="Role: plan, execute or review.")
@hub_option
@json_option
def capabilities(
    task: str,
    language: str | None,
    context_size: int | None,
    role: str | None,
    hub: str | None,
    as_json: bool,
) -> None:
    """Rank the agents for a task.

    By their configured scores for the role; reasons and warnings say why.
    """
    requirements = _given({"language": language, "contextSize": context_size, "role": role})
    reply = ask_hub("get_capabilities", {"task": task, "requirements": requirements}, hub)
    if as_json:
        print_json(reply)
        return
    rows = reply["recommendations"]
    if not rows:
        note("no agent has the role; the hub starts the language models: retinue hub; see: retinue doctor")
        return
    print_table(
        ("AGENT", "SCORE", "REASONS", "WARNINGS"),
        [(row["agent"], row["score"], row["reasons"], row["warnings"]) for row in rows],
    )


@click.group()
def cache() -> None:
    """Forget cached answers."""


@cache.command()
@hub_option
@json_option
def clear(hub: str | None, as_json: bool) -> None:
    """Forget all cached answers of the hub."""
    reply = ask_hub("clear_cache", {}, hub)
    if as_json:
        print_json(reply)
    else:
        click.echo(f"forgot {reply['answers']} answers and {reply['steps']} results of steps")
