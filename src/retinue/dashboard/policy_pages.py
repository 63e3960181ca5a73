"""The pages of approvals and policies: calls that wait for a person, and what policies have decided."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from retinue.approvals.records import SCOPE
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.dashboard.asking import HubSkills
from retinue.dashboard.frame import (
    MAX_ARGUMENTS_CHARACTERS,
    PAGE,
    Page,
    PageFrame,
    describe_error,
    lead_to,
    read_entries,
    read_number,
)
from retinue.dashboard.sessions import ROOT

FREE = "free."
"""The prefix of the name of an argument that may differ, in a form."""

STATES = ("open", "approved", "used", "denied", "expired")

DRAFT = "draft.cedar"
"""The name of the draft in messages."""

_SINCE_S = {"1h": 3_600.0, "1d": 86_400.0, "7d": 7 * 86_400.0}

TITLES = {
    "denied": "denied",
    "asked": "asked",
    "limited": "limited",
    "redacted": "masked",
    "allowed": "allowed",
    "cannot_tell": "cannot tell",
}
"""What a call would be by a draft."""

_SAMPLE = """\
@id("my-policy") @reason("why a call is denied")
forbid(principal, action == Retinue::Action::"call", resource)
when { resource.destructive };
"""


class PolicyPages:
    """The pages below ``/ui/approvals`` and ``/ui/policies``."""

    def __init__(self, hub: HubSkills, frame: PageFrame) -> None:
        self._hub = hub
        self._frame = frame

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {f"{ROOT}/approvals": self._approvals, f"{ROOT}/policies": self._policies}

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {
            f"{ROOT}/approvals/{{approval}}": self._approval,
            f"{ROOT}/policies/draft": self._draft,
        }

    async def _approvals(self, request: Request, principal: Principal) -> Response:
        state = request.query_params.get("state", "open")
        arguments = {"state": state} if state in STATES else {}
        listing = await self._hub.read(principal, "list_approvals", arguments)
        rows, start = listing["approvals"], read_number(request, "from")
        # those that expire first are decided first
        if state == "open":
            rows = sorted(rows, key=lambda row: row["expires_at"])
        context = {
            "approvals": rows[start : start + PAGE],
            "count": len(rows),
            "state": state if arguments else "all",
            "states": (*STATES, "all"),
            "start": start,
            "next": start + PAGE if start + PAGE < len(rows) else None,
            "previous": max(0, start - PAGE) if start else None,
        }
        return self._frame.render("approvals.html", request, context, "approvals", data={"approvals": rows})

    async def _approval(self, request: Request, principal: Principal) -> Response:
        name, draft, entries = request.path_params["approval"], None, dict[str, str]()
        if request.method == "POST":
            entries = await read_entries(request)
        if entries.get("action") == "similar":
            free = sorted(key.removeprefix(FREE) for key in entries if key.startswith(FREE))
            # a browser sends the line ends of a form as CR LF
            rule = entries.get("rule", "").replace("\r\n", "\n")
            arguments = {"approval": name, "free": free, "until": entries.get("until", ""), "rule": rule}
            draft = {**(await self._hub.act(principal, "approve_similar", arguments)).get(), "free": free}
            if rule:
                return lead_to("approvals", name)
        elif request.method == "POST":
            answer = {key: entries.get(key, "") for key in ("verdict", "comment")}
            (await self._hub.act(principal, "answer_approval", {"approval": name, **answer})).get()
            return lead_to("approvals", name)
        row = await self._hub.read(principal, "show_approval", {"approval": name})
        context = {
            "approval": row,
            "step": {"step": row.get("step", ""), "approval": name},
            "can_approve": SCOPE in principal.scopes,
            "draft": draft,
            "free_prefix": FREE,
            "limit": MAX_ARGUMENTS_CHARACTERS,
        }
        return self._frame.render("approval.html", request, context, "approvals", data=row)

    async def _policies(self, request: Request, principal: Principal) -> Response:
        listing = await self._hub.read(principal, "list_policies")
        return self._frame.render("policies.html", request, listing, "policies", data=listing)

    async def _draft(self, request: Request, principal: Principal) -> Response:
        """A draft, replayed at each request, and by the script of the page while a person types."""
        in_force = await self._hub.read(principal, "list_policies")
        entries = {"text": _SAMPLE, "since": "1d", "current": "1"}
        if request.method == "POST":
            entries = await read_entries(request)
        text = entries.get("text", "").replace("\r\n", "\n")
        since = entries.get("since", "") if entries.get("since") in _SINCE_S else "1d"
        arguments = {
            "files": {DRAFT: text},
            "default": in_force.get("default", "allow"),
            "since_s": _SINCE_S[since],
            "with_current": "current" in entries,
        }
        reply, problem = None, ""
        try:
            reply = await self._hub.read(principal, "replay_policies", arguments)
        except InvalidSettingError as error:
            problem = describe_error(error)
        context = {
            "text": text,
            "since": since,
            "choices": tuple(_SINCE_S),
            "current": "current" in entries,
            "problem": problem,
            "reply": reply,
            "titles": TITLES,
        }
        return self._frame.render("policy_draft.html", request, context, "policies")
