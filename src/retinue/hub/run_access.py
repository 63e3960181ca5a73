"""Decides which runs a caller may access, and the ids under which it knows them.

One rule guards them all. A run calls skills with the scopes and the view of the caller that started it, and
its record shows the results. A caller that lacks any of these scopes, or does not see all agents that the
other one sees, therefore cannot access the run. A run also sees the whole mesh, so a caller that is limited
to some agents has no access to any run.

A caller chooses the id of a run as an idempotency key. Callers with other rights may choose the same one, and
must not learn that it is taken. So the stored id of a run has a mark for the rights of who started it, as in
``nightly~mesh``; the mark is not shown to callers with the same rights, and there is none for all rights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, NotAllowedError, Problem, UnknownRunError
from retinue.mesh.permissions import Access, covers
from retinue.workflows.definitions.run_forms import Bundled
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import RUN_ID, RUN_ID_MARK, RunRecord

_PROCESS_SCOPES = frozenset({"private"})
"""Scopes that a run does not keep, because another process may resume it."""

_ALL_SCOPES = frozenset({"mesh", "runs_code"})
_MARKS = ("mesh", "exposed", "exposed.code")
"""Marks of callers that see all agents."""


def reject_limited(principal: Principal) -> None:
    """Reject a caller that is limited to some agents; raises NotAllowedError.

    An agent that the caller may call starts a run for it, which reaches these agents only.
    """
    if principal.agents and not principal.through:
        raise NotAllowedError(
            "a caller that is limited to some agents runs no workflows", remedy="call the skills directly"
        )


class RunAccess:
    """Decides by the scopes of a caller, and by the ``access`` lists of the agents."""

    def __init__(self, runs: Runs, access: Access) -> None:
        self._runs = runs
        self._access = access

    def check_start(self, principal: Principal, workflow: str, *, is_inline: bool) -> None:
        """Raise PolicyDeniedError where policies forbid that a principal starts a workflow."""
        self._access.check_start(principal, workflow, is_inline=is_inline)

    def check_nested_starts(self, principal: Principal, nested: Bundled) -> None:
        """Raise PolicyDeniedError where policies forbid that a principal starts one of the nested workflows.

        Otherwise a caller would start a forbidden workflow as a step of a definition of its own.
        """
        for workflow in nested.values():
            self.check_start(principal, workflow.definition.name, is_inline=False)

    def may_access(self, principal: Principal, record: RunRecord) -> bool:
        """Whether the caller has every scope that the run has, and sees every agent that its starter sees."""
        origin = record.request.origin
        return self.may_act_for(principal, origin.caller, origin.scopes, origin.reach.agents)

    def may_act_for(
        self, principal: Principal, caller: str, scopes: frozenset[str], agents: tuple[str, ...] = ()
    ) -> bool:
        """Whether a principal has all scopes, and sees all agents, that a caller with these scopes does.

        ``agents`` = the globs that limit the caller; a principal with globs must have the same ones.
        """
        if not covers(principal.scopes, scopes - _PROCESS_SCOPES) or principal.agents not in ((), agents):
            return False
        hidden = self._hidden_from(principal)
        return hidden <= self._hidden_from(Principal(caller, "run", scopes))

    def filter(self, principal: Principal) -> Callable[[RunRecord], bool]:
        """A predicate for the runs that the caller may access; raises NotAllowedError if there are none."""
        reject_limited(principal)
        return lambda record: self.may_access(principal, record)

    async def get(self, run_id: str, principal: Principal) -> RunRecord:
        """Get a run that the caller may access: its own of this id, else one of a caller with fewer rights.

        Raises NotAllowedError, and UnknownRunError also for an existing run without access.
        """
        reject_limited(principal)
        root, slash, below = run_id.partition("/")
        for stored in self.list_stored_ids(root, principal):
            try:
                record = await self._runs.get(f"{stored}{slash}{below}")
            except UnknownRunError:
                continue
            if self.may_access(principal, record):
                return record
        raise UnknownRunError(run_id)

    def list_stored_ids(self, run_id: str, principal: Principal) -> tuple[str, ...]:
        """The ids under which something is stored that the caller may name so, its own first."""
        ids = [self.stored_id(run_id, principal), run_id]
        if RUN_ID_MARK not in run_id:
            ids += [f"{run_id}{RUN_ID_MARK}{mark}" for mark in _MARKS]
        return tuple(dict.fromkeys(ids))

    def stored_id(self, run_id: str, principal: Principal) -> str:
        """The id under which a run is stored that the caller names so."""
        mark = self._mark_of(principal)
        return run_id if not mark or RUN_ID_MARK in run_id else f"{run_id}{RUN_ID_MARK}{mark}"

    def stored_id_of_rerun(self, run_id: str, record: RunRecord, principal: Principal) -> str:
        """As `stored_id`, for a rerun of ``record``, which keeps the rights of that run."""
        _, separator, mark = record.id.partition("/")[0].partition(RUN_ID_MARK)
        return f"{run_id}{RUN_ID_MARK}{mark}" if separator else self.stored_id(run_id, principal)

    def stored_session(self, name: str, principal: Principal) -> str:
        """The name under which the conversation of this name is stored; each caller has its own ones.

        Raises InvalidParametersError for another form of name.
        """
        if not RUN_ID.fullmatch(name):
            form = "1 to 100 letters, digits, and . _ : - after the first"
            raise InvalidParametersError([Problem("session", f"field 'session' is no name: {form}")])
        owner = f"{principal.kind} {principal.id} {self._mark_of(principal)}"
        return f"{name}{RUN_ID_MARK}{sha256(owner.encode()).hexdigest()[:12]}"

    def shown_id(self, stored: str, principal: Principal) -> str:
        """The id of a stored run as the caller names it."""
        root, slash, below = stored.partition("/")
        mark = self._mark_of(principal)
        return f"{root.removesuffix(RUN_ID_MARK + mark) if mark else root}{slash}{below}"

    def _mark_of(self, principal: Principal) -> str:
        """The mark of a caller's rights; "" for all of them."""
        words = []
        if not principal.scopes >= _ALL_SCOPES:
            words.append("mesh" if "mesh" in principal.scopes else "exposed")
            words += ["code"] if "runs_code" in principal.scopes else []
        limits = [*sorted(self._hidden_from(principal)), *principal.agents]
        if limits:
            words.append(sha256(" ".join(limits).encode()).hexdigest()[:12])
        return ".".join(words)

    def _hidden_from(self, principal: Principal) -> frozenset[str]:
        view = self._access.view_of(replace(principal, through=""))
        return frozenset() if view is None else view.closed
