"""The class of action that a request or a skill is about, such as ``create`` or ``delete``.

The verb of a request is mostly a stop word of the search (``show``, ``get``, ``set``), because nearly every
request has one. It decides between two skills about the same subject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import lru_cache
from itertools import zip_longest
from types import MappingProxyType

from retinue.mesh.search.words import stem

AGREEMENT = 1.0
NEAR_AGREEMENT = 0.5
UNKNOWN_AGREEMENT = 0.5
"""The agreement with a skill whose name has no verb: that of a near class, because it may do anything."""

CONFLICT = -0.5
"""One reads where the other writes."""

_VERBS = {
    "get": "get show read view display see retrieve give look open describe check inspect what when who whom",
    "list": "list enumerate browse which every",
    "find": "find search lookup query discover locate seek where recommend suggest",
    "create": "create add new make insert register generate write draft compose schedule build plan start"
    " prepare produce raise file book append invite",
    "update": "update edit change modify set rename move replace patch adjust mark assign rewrite fix correct"
    " fill put reset switch toggle transition restore enable",
    "delete": "delete remove clear cancel drop erase destroy rid purge trash unsubscribe revoke undo unlink",
    "send": "send post share publish notify message reply forward submit answer deliver email tell",
    "compute": "compute calculate count convert sum estimate analyze analyse compare solve evaluate how"
    " translate summarize summarise format diff much many",
    "run": "run execute launch trigger invoke call play perform",
    "stop": "stop kill end terminate close pause abort halt disable archive",
    "upload": "upload import push attach",
    "download": "download export save pull fetch dump",
}

_PHRASES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("get", "rid"): "delete",
        ("throw", "away"): "delete",
        ("take", "off"): "delete",
        ("look", "for"): "find",
        ("look", "up"): "find",
        ("set", "up"): "create",
        ("shut", "down"): "stop",
        ("switch", "off"): "stop",
    }
)
_WORDS = frozenset(word for verbs in _VERBS.values() for word in verbs.split())
_CLASSES: Mapping[str, str] = MappingProxyType(
    {stem(verb): action for action, verbs in _VERBS.items() for verb in verbs.split()}
)

_NEAR = frozenset(
    frozenset(pair)
    for pair in (
        ("get", "list"),
        ("get", "find"),
        ("get", "download"),
        ("get", "compute"),
        ("list", "find"),
        ("list", "download"),
        ("create", "upload"),
        ("create", "update"),
        ("create", "send"),
        ("create", "run"),
        ("stop", "delete"),
        ("stop", "update"),
        ("send", "upload"),
    )
)
_SERVING: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        action: frozenset(stem(word) for word in f"{_VERBS[action]} {others}".split())
        for action, others in {
            "delete": "archive disable expire",
            "stop": "delete cancel remove",
            "upload": "add insert send share post publish put store",
        }.items()
    }
)
"""An action → the stems of which one is in the text of each skill that serves it.

The verbs of other actions are too ambiguous: ``send me the weather``, ``change dollars to euros``.
"""

_READING = frozenset({"get", "list", "find", "compute", "download"})

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME_WORDS = 2
"""A verb is the first word of a name, or the second one after a prefix: ``jira_create_issue``."""

_READ_CHARS = 400
_CACHED_NAMES = 16_384


def read_action(request: str) -> str | None:
    """The class of the first verb of a request, or None."""
    return _first_class(_WORD.findall(request[:_READ_CHARS]))


@lru_cache(maxsize=_CACHED_NAMES)
def action_of_skill(skill_id: str) -> str | None:
    """The class of the verb in the id of a skill, or None."""
    return _first_class(_WORD.findall(skill_id[:_READ_CHARS])[:_NAME_WORDS])


def compare_actions(asked: str | None, offered: str | None) -> float:
    """How well the action of a skill agrees with that of a request: from -0.5 to 1; 0 if none is asked."""
    if asked is None:
        return 0.0
    if offered is None:
        return UNKNOWN_AGREEMENT
    if asked == offered:
        return AGREEMENT
    if frozenset((asked, offered)) in _NEAR:
        return NEAR_AGREEMENT
    return CONFLICT if (asked in _READING) != (offered in _READING) else 0.0


def lacks_action(asked: str | None, stems: Set[str]) -> bool:
    """Whether a skill whose text has these stems does not serve an action that a request names clearly."""
    return asked is not None and asked in _SERVING and not _SERVING[asked] & stems


def _first_class(words: list[str]) -> str | None:
    lower = [word.lower() for word in words]
    for word, following in zip_longest(lower, lower[1:], fillvalue=""):
        # a plural is a noun: the stem of `news` is that of `new`
        is_noun = word.endswith("s") and word not in _WORDS
        action = _PHRASES.get((word, following)) or (None if is_noun else _CLASSES.get(stem(word)))
        if action is not None:
            return action
    return None
