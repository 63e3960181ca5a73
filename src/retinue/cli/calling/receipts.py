"""``retinue receipts``: what other hubs measured of agents, and what this hub signs for others."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import ask_hub


@click.command()
@click.argument("agent", required=False, default="")
@click.option("--publish", is_flag=True, help="Sign what this hub measured, and attach it to the cards.")
@hub_option
@json_option
def receipts(agent: str, publish: bool, hub: str | None, as_json: bool) -> None:
    """Show what other hubs measured of AGENT, or of all agents.

    A receipt counts if a key that you trust signed it. Receipts of failures lower the place of an agent in
    searches; good ones change nothing.
    """
    reply = ask_hub("publish_receipts" if publish else "show_receipts", {"agent": agent}, hub)
    if as_json:
        print_json(reply)
    elif publish:
        _print_published(reply["published"])
    else:
        _print_known(reply["receipts"])


def _print_published(rows: list[dict[str, Any]]) -> None:
    if not rows:
        note("nothing to publish: no agent of another mesh's registry has enough calls yet")
        return
    print_table(
        ("AGENT", "REGISTRY", "CALLS", "RESULT"),
        [(row["agent"], row["registry"], row["calls"], row.get("error", "attached")) for row in rows],
        cut="RESULT",
    )


def _print_known(rows: list[dict[str, Any]]) -> None:
    if not rows:
        note("no receipts; only those of hubs whose keys you trust count: retinue keys trust")
        return
    print_table(
        ("AGENT", "ISSUER", "CALLS", "FAILED", "P95 MS", "EXAM", "DAYS", "WEIGHT"),
        [
            (
                row["agent"],
                clean(row["issuer"]),
                row.get("calls", ""),
                _render_failures(row),
                row.get("latency_ms", {}).get("p95", ""),
                row.get("exam", ""),
                row.get("age_days", ""),
                clean(row["reason"]) if "reason" in row else _render_weight(row),
            )
            for row in rows
        ],
        cut="WEIGHT",
    )


def _render_weight(row: dict[str, Any]) -> str:
    return f"{row['weight']:.2f}" + (", of another version of the card" if "earlier" in row else "")


def _render_failures(row: dict[str, Any]) -> str:
    failures: dict[str, int] = row.get("failures", {})
    kinds = ", ".join(f"{count} {kind}" for kind, count in failures.items())
    return kinds or ("0" if "calls" in row else "")
