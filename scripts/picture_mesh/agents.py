"""Agents and workflows of the pictures, as files that their author would write."""

from __future__ import annotations

from collections.abc import Mapping

AGENT = """
import asyncio
from typing import Literal

from retinue import Agent, Context

agent = Agent("{name}", version="{version}", description="{description}")

{skills}
"""
AGENTS: Mapping[str, tuple[str, str, str]] = {
    "ledger-agent": (
        "2.1.0",
        "Books expenses and tells what is left of a budget",
        '''
@agent.skill(expose=True)
async def check_budget(amount: float, account: Literal["travel", "office", "training"] = "office") -> dict:
    """Tells whether an account has enough left for an amount."""
    await asyncio.sleep(0.04)
    return {"account": account, "left": 1200 - amount, "enough": amount <= 1200}


@agent.skill(expose=True)
async def book_expense(amount: float, purpose: str, receipts: list[str] = []) -> dict:
    """Books an expense on its account."""
    await asyncio.sleep(0.06)
    return {"booked": amount, "purpose": purpose, "receipts": len(receipts)}
''',
    ),
    "rates-agent": (
        "1.4.2",
        "Converts amounts between currencies",
        '''
@agent.skill(expose=True)
async def convert_amount(amount: float, to: str = "EUR") -> dict:
    """Converts an amount to another currency."""
    await asyncio.sleep(0.02)
    if to == "XXX":
        raise ValueError("no such currency: XXX")
    return {"amount": round(amount * 0.92, 2), "currency": to}
''',
    ),
    "mail-agent": (
        "0.9.0",
        "Writes to people and reads what they answer",
        '''
@agent.skill(expose=True)
async def notify_person(name: str, text: str, ctx: Context) -> dict:
    """Writes a message to a person, with the amount in their currency."""
    converted = await ctx.call("convert_amount", {"amount": 80.0})
    return {"to": name, "said": text, "amount": converted}
''',
    ),
    "search-agent": (
        "3.0.1",
        "Keeps an index of documents up to date",
        '''
@agent.skill(expose=True)
async def index_documents(folder: str) -> int:
    """Reads all documents of a folder into the index."""
    await asyncio.sleep(3600)
    return 0
''',
    ),
    "archive-agent": (
        "1.0.0",
        "Keeps receipts",
        '''
@agent.skill(expose=True)
async def keep_receipt(number: str) -> bool:
    """Keeps a receipt for ten years."""
    return True
''',
    ),
}
DEAD = "archive-agent"
"""The agent that does not answer in the pictures."""

WORKFLOW = """\
name: expense
description: Check, convert and book an expense after an approval
input:
  type: object
  properties:
    amount: {type: number, description: The amount in US dollars}
    purpose: {type: string}
  required: [amount, purpose]
steps:
  - id: look
    parallel: {mode: all}
    steps:
      - {id: budget, skill: check_budget, with: {amount: "${{ input.amount }}"}}
      - {id: rate, skill: convert_amount, with: {amount: "${{ input.amount }}"}}
  - {id: approval, wait_for: {topic: approval, message: May this expense be booked?}, timeout: 1h}
  - {id: book, skill: book_expense, with: {amount: "${{ input.amount }}", purpose: "${{ input.purpose }}"}}
  - {id: tell, skill: notify_person, with: {name: Ada, text: It is booked}}
output: {booked: "${{ steps.book.output }}"}
"""
DRAFT = WORKFLOW.replace("name: expense", "name: expense-2").replace(
    "skill: book_expense", "skil: book_expense"
)

WORKFLOWS: Mapping[str, str] = {
    "expense": WORKFLOW,
    "convert-prices": """\
name: convert-prices
description: Convert one price
input: {type: object, properties: {amount: {type: number}, to: {type: string}}, required: [amount, to]}
steps:
  - {id: convert, skill: convert_amount, with: {amount: "${{ input.amount }}", to: "${{ input.to }}"}}
output: "${{ steps.convert.output }}"
""",
    "release-notes": """\
name: release-notes
description: Collect what was merged since the last release, draw how long it took, and ask before publishing
schedule: {cron: 0 7 * * mon, timezone: Europe/Berlin}
steps:
  - {id: merged, skill: list_pull_requests, with: {owner: acme, repo: shop-frontend}}
  - {id: chart, skill: generate_bar_chart, with: {title: Days to merge, values: [3, 1, 4, 1, 5, 9, 2, 6]}}
  - id: publish
    wait_for:
      topic: publish
      message: Publish the notes of 4.12.0?
      schema: {type: object, properties: {ok: {type: boolean}, note: {type: string}}, required: [ok]}
""",
    "nightly-report": """\
name: nightly-report
description: Draw the figures of the last day
schedule: {cron: 30 3 * * *, timezone: Europe/Berlin}
steps:
  - {id: health, skill: analyze_db_health}
  - {id: chart, skill: generate_line_chart, with: {title: Orders an hour, values: [5, 3, 9, 14, 22, 31, 28]}}
""",
    "convert-catalogue": """\
name: convert-catalogue
description: Convert all prices of a catalogue; some are in a currency that does not exist
input: {type: object, properties: {prices: {type: array}}, required: [prices]}
steps:
  - id: each
    foreach: {in: "${{ input.prices }}", concurrency: 8}
    steps:
      - id: convert
        skill: convert_amount
        with: {amount: "${{ loop.item.amount }}", to: "${{ loop.item.to }}"}
        on_error: continue
""",
    "reindex-documents": """\
name: reindex-documents
description: Read all documents into the index again
schedule: {every: 36h}
steps:
  - {id: index, skill: index_documents, with: {folder: /srv/documents}, timeout: 2h}
""",
}
"""Name of a stored workflow → its file."""
