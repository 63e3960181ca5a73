"""The performatives, their ontologies, the codons made of them, and the mapping to FIPA-ACL.

A *performative* is the kind of a message (seed 000). A *codon* is a named exchange of them (W-01). The wire
field ``mcp_version`` means the Multi-Agent Communication Protocol, not the Model Context Protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ONTOLOGY = "elizaos:ontology:"
"""The prefix of an ontology term: ``elizaos:ontology:<domain>/<subdomain>/<concept>``."""

SHORT_ONTOLOGY = "elizaos:"
"""Short forms, such as ``elizaos:coding``, are terms of the same ontology."""


@dataclass(frozen=True, slots=True)
class Performative:
    """One kind of message.

    ``ontology`` is the term of a message that names none. ``is_reply`` = it must carry ``in_reply_to``.
    ``fipa`` is the communicative act of FIPA-ACL that it stands for.
    """

    name: str
    purpose: str
    ontology: str
    fipa: str
    is_reply: bool = False

    def as_json(self) -> dict[str, Any]:
        """For listings."""
        return {
            "name": self.name,
            "purpose": self.purpose,
            "ontology": self.ontology,
            "fipa": self.fipa,
            "is_reply": self.is_reply,
        }


def _term(path: str) -> str:
    return ONTOLOGY + path


_ALL = (
    Performative(
        "QUERY_CAPABILITIES", "Asks what an agent can do.", _term("agent/capability_query"), "query-ref"
    ),
    Performative(
        "INFORM_CAPABILITIES",
        "Answers QUERY_CAPABILITIES.",
        _term("agent/capability_information"),
        "inform-ref",
        is_reply=True,
    ),
    Performative("TASK_REQUEST", "Asks an agent to run a skill.", _term("general/task_request"), "request"),
    Performative(
        "TASK_ACCEPT",
        "The agent runs the task; its result follows.",
        _term("general/task_acceptance"),
        "agree",
        is_reply=True,
    ),
    Performative(
        "TASK_REJECT",
        "The agent does not run the task, and says why.",
        _term("general/task_rejection"),
        "refuse",
        is_reply=True,
    ),
    Performative(
        "INFORM_RESULT",
        "The result of a task, or the answer to a question.",
        _term("general/task_result"),
        "inform",
        is_reply=True,
    ),
    Performative(
        "FAILURE",
        "The task or the question was understood, and failed.",
        _term("general/action_execution_failure"),
        "failure",
        is_reply=True,
    ),
    Performative(
        "NOT_UNDERSTOOD",
        "The message is malformed, or fits no conversation.",
        _term("general/message_not_understood"),
        "not-understood",
        is_reply=True,
    ),
    Performative("QUERY_IF", "Asks whether a condition holds.", _term("general/query_if"), "query-if"),
    Performative("QUERY_REF", "Asks for what a reference names.", _term("general/query_ref"), "query-ref"),
    Performative(
        "SUBSCRIBE",
        "Asks for news of a task or of the capabilities.",
        _term("general/subscribe"),
        "subscribe",
    ),
    Performative("CANCEL", "Ends a running task or a subscription.", _term("general/cancel"), "cancel"),
    Performative(
        "PROPOSE",
        "Asks whether an agent would run a task, without running it.",
        _term("general/propose"),
        "propose",
    ),
)

PERFORMATIVES: Mapping[str, Performative] = {performative.name: performative for performative in _ALL}

TO_FIPA: Mapping[str, str] = {performative.name: performative.fipa for performative in _ALL}
"""Each performative as an act of FIPA-ACL."""

FROM_FIPA: Mapping[str, str] = {
    "request": "TASK_REQUEST",
    "agree": "TASK_ACCEPT",
    "refuse": "TASK_REJECT",
    "inform": "INFORM_RESULT",
    "failure": "FAILURE",
    "not-understood": "NOT_UNDERSTOOD",
    "query-if": "QUERY_IF",
    "query-ref": "QUERY_REF",
    "inform-ref": "INFORM_CAPABILITIES",
    "inform-if": "INFORM_RESULT",
    "subscribe": "SUBSCRIBE",
    "cancel": "CANCEL",
    "propose": "PROPOSE",
    "cfp": "QUERY_CAPABILITIES",
    "accept-proposal": "TASK_ACCEPT",
    "reject-proposal": "TASK_REJECT",
}
"""Acts of FIPA-ACL as performatives; these names are understood on input, except in strict mode.

``query-ref`` is QUERY_REF, the general one. A call for proposals (``cfp``) asks who can do something.
"""


@dataclass(frozen=True, slots=True)
class Codon:
    """A named exchange: ``opening`` starts it, ``answers`` are the possible replies, in the order of the
    states.

    ``states`` maps a state to the replies that it admits and the state after each; "closed" is the end.
    """

    name: str
    purpose: str
    opening: str
    states: Mapping[str, Mapping[str, str]]

    def as_json(self) -> dict[str, Any]:
        """For listings."""
        return {
            "name": self.name,
            "purpose": self.purpose,
            "opening": self.opening,
            "states": {state: dict(after) for state, after in self.states.items()},
        }


CLOSED = "closed"
OPEN = "open"

_REFUSED = {"TASK_REJECT": CLOSED, "FAILURE": CLOSED, "NOT_UNDERSTOOD": CLOSED}
_ANSWERED = {"INFORM_RESULT": CLOSED, **_REFUSED}

CODONS: Mapping[str, Codon] = {
    codon.opening: codon
    for codon in (
        Codon(
            "Whispering Wind",
            "An agent asks another what it can do, and is told.",
            "QUERY_CAPABILITIES",
            {OPEN: {"INFORM_CAPABILITIES": CLOSED, **_REFUSED}},
        ),
        Codon(
            "Delegation",
            "An agent hands a task to another, which accepts or rejects it and reports the result.",
            "TASK_REQUEST",
            {
                OPEN: {"TASK_ACCEPT": "accepted", **_ANSWERED},
                "accepted": {"TASK_ACCEPT": "accepted", **_ANSWERED},
            },
        ),
        Codon("Condition", "An agent asks whether something holds.", "QUERY_IF", {OPEN: _ANSWERED}),
        Codon(
            "Reference",
            "An agent asks for what a reference names: a task, the codons, an agent of the directory.",
            "QUERY_REF",
            {OPEN: {"TASK_ACCEPT": CLOSED, "INFORM_CAPABILITIES": CLOSED, **_ANSWERED}},
        ),
        Codon(
            "Proposal",
            "An agent asks whether another would run a task, before it requests it.",
            "PROPOSE",
            {OPEN: {"TASK_ACCEPT": CLOSED, **_REFUSED}},
        ),
        Codon(
            "Subscription",
            "An agent is told of every change until it cancels.",
            "SUBSCRIBE",
            {
                OPEN: {"TASK_ACCEPT": "accepted", **_REFUSED},
                "accepted": {
                    "TASK_ACCEPT": "accepted",
                    "INFORM_CAPABILITIES": "accepted",
                    "INFORM_RESULT": "accepted",
                    "FAILURE": "accepted",
                },
            },
        ),
        Codon("Cancellation", "An agent ends what it has begun.", "CANCEL", {OPEN: _ANSWERED}),
    )
}
"""The codons, by the performative that opens them."""


def knows_ontology(term: str) -> bool:
    """Whether a term belongs to the ontology that is spoken here."""
    return term.startswith(SHORT_ONTOLOGY) and len(term) > len(SHORT_ONTOLOGY)
