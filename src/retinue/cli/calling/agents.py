"""``retinue agents`` and ``retinue show``: list and show the agents of the mesh."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.failures import paint
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table, warn, warn_missing
from retinue.cli.session import ask_hub, open_session, run_command
from retinue.client.hub_skills import read_agents

_SHOWN_SKILLS = 12
_NO_AGENTS = "no agents yet; start one: retinue serve agent.py"


@click.command()
@click.argument("text", required=False, default="")
@click.option("--skills", "shows_skills", is_flag=True, help="Show the ids of the skills, not their number.")
@hub_option
@json_option
def agents(text: str, shows_skills: bool, hub: str | None, as_json: bool) -> None:
    """List the agents.

    Shows each agent of the registries, whether it is available, and if not, since when and why. With TEXT,
    a description in words, only matching agents, the best first.
    """
    reply = run_command(_list_agents(text, hub))
    if as_json:
        print_json(reply)
        return
    rows = reply["agents"]
    has_owners = any(row.get("owner") for row in rows)
    has_exams = any(row.get("exam", {}).get("result", "not_examined") != "not_examined" for row in rows)
    has_doubtful = any(row.get("signature", "valid") != "valid" for row in rows)
    columns = (*(("FROM",) if has_owners else ()), *(("SIGNATURE",) if has_doubtful else ()))
    columns = (*(("EXAM",) if has_exams else ()), *columns)
    if rows:
        print_table(
            ("NAME", "VERSION", "STATUS", "SKILLS", "URL", *columns),
            [
                (
                    row.get("full_name") or row["name"],
                    row.get("version"),
                    _render_status(row),
                    _render_skills(row.get("skills"), shows_skills),
                    row.get("url"),
                    *((row.get("exam", {}).get("result", "").replace("_", " "),) if has_exams else ()),
                    *((_render_owner(row),) if has_owners else ()),
                    *((row.get("signature"),) if has_doubtful else ()),
                )
                for row in rows
            ],
        )
    else:
        note(f"no agent matches {text!r}; list all: retinue agents" if text else _NO_AGENTS)
    for row in rows:
        if row.get("deprecated"):
            warn(row["deprecated"])
        if row.get("last_error"):
            warn(f"{row['name']}: {row['last_error']}")
        if row.get("exam", {}).get("result") == "failed":
            problems = "; ".join(row["exam"].get("problems", ()))
            warn(f"{row['name']} failed its exam{': ' if problems else ''}{problems}")
    warn_missing(reply)


@click.command()
@click.argument("name", shell_complete=complete_agent)
@click.option("--markdown", is_flag=True, help="Print the card as a Markdown document.")
@hub_option
@json_option
def show(name: str, markdown: bool, hub: str | None, as_json: bool) -> None:
    """Show one agent and its skills.

    NAME is the agent's name; name@1 for an older major version, name@source if several registries list
    that name.
    """
    if markdown and as_json:
        raise click.UsageError("--markdown and --json cannot be combined.")
    reply = ask_hub("show_agent", {"name": name}, hub)
    if as_json:
        print_json(reply)
        return
    if markdown:
        click.echo(_render_document(name, reply["card"]), nl=False)
        return
    card, listing = reply["card"], reply["listing"]
    heading = paint(clean(f"{card['name']} {card.get('version') or ''}"), bold=True)
    click.echo(heading + (f"  {clean(card['description'])}" if card.get("description") else ""))
    facts = {
        "status": _render_status(listing),
        "url": card.get("url"),
        "published": listing.get("reference"),
        "source": listing.get("source"),
        "digest": listing.get("digest"),
        "signature": listing.get("signature"),
        "maintainer": card.get("maintainer"),
        "last error": listing.get("last_error"),
        "deprecated": listing.get("deprecated"),
        "exam": _render_exam(reply.get("exam")),
    }
    for label, value in facts.items():
        if value:
            click.echo(f"{label + ':':<12}{clean(value)}")
    if card.get("skills"):
        click.echo()
        print_table(
            ("SKILL", "TAKES", "GIVES", "DESCRIPTION"),
            [
                (
                    skill["id"],
                    render_fields(skill.get("input_schema")),
                    render_fields(skill.get("output_schema")),
                    skill.get("description"),
                )
                for skill in card["skills"]
            ],
        )


def _render_exam(exam: Mapping[str, Any] | None) -> str:
    """The result of the entrance exam, with what failed or why nothing was asked; "" without exams."""
    if exam is None:
        return ""
    calls = f"{exam['calls']} calls" if "calls" in exam else ""
    age = describe_age(str(exam["at"])) if "at" in exam else ""
    facts = ", ".join(filter(None, (calls, age)))
    result = str(exam["result"]).replace("_", " ") + (f" ({facts})" if facts else "")
    return ": ".join(filter(None, (result, "; ".join(exam.get("problems", ())))))


def _render_document(name: str, card: Mapping[str, Any]) -> str:
    from retinue.cards.markdown_card import render_document
    from retinue.cards.pallet_card import encode_card, parse_card

    return render_document(parse_card(encode_card(card), reference=name))


def render_fields(schema: Any) -> str:
    """The fields of an object schema, optional ones with ``?``; otherwise the type; "" if unknown."""
    if not isinstance(schema, Mapping):
        return ""
    fields = schema.get("properties")
    if isinstance(fields, Mapping) and fields:
        required = schema.get("required") or ()
        return ", ".join(name if name in required else f"{name}?" for name in fields)
    kind = schema.get("type")
    return clean(kind if isinstance(kind, str | list) else "")


async def _list_agents(text: str, hub: str | None) -> dict[str, Any]:
    async with open_session().hub_client(hub) as client:
        return await read_agents(client.get, {"query": text} if text.strip() else {})


def _render_skills(skills: Any, shows_ids: bool) -> Any:
    """The number of an agent's skills, or the first ids at a terminal and all elsewhere."""
    if not isinstance(skills, list):
        return skills
    if not shows_ids:
        return len(skills)
    if len(skills) <= _SHOWN_SKILLS or not sys.stdout.isatty():
        return skills
    return [*skills[:_SHOWN_SKILLS], f"and {len(skills) - _SHOWN_SKILLS:,} more (retinue show NAME)"]


def _render_owner(row: Mapping[str, Any]) -> str:
    """The node of a KOI network that an agent comes from, else its source."""
    owner = str(row.get("owner") or "")
    node, _, digest = owner.removeprefix("orn:koi-net.node:").rpartition("+")
    # hubs have one name by default: the beginning of the hash tells them apart
    return f"koi: {node}+{digest[:8]}" if node else f"koi: {owner}" if owner else str(row.get("source") or "")


def _render_status(row: Mapping[str, Any]) -> str:
    status = str(row.get("health") or row.get("status") or "unknown")
    if status == "available" and row.get("status") == "busy":
        status = "busy"
    if status in {"unavailable", "degraded"} and row.get("since"):
        return f"{status} since {describe_age(str(row['since']))}"
    return status


_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "h"), (120, 60, "min"))


def describe_age(time: str, now: datetime | None = None) -> str:
    """How long ago an ISO time was: ``5 s ago``; the text itself if it is none."""
    try:
        then = datetime.fromisoformat(time.replace("Z", "+00:00"))
        age_s = ((now or datetime.now(UTC)) - then).total_seconds()
    except (ValueError, TypeError):
        return clean(time)
    for least_s, unit_s, unit in _UNITS:
        if age_s >= least_s:
            return f"{age_s // unit_s:.0f} {unit} ago"
    return f"{max(age_s, 0):.0f} s ago"
