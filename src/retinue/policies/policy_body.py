"""The bounds of a policy as text, and its JSON form.

The parser of Cedar recurses for each bracket and each operator and has no bound of its own, so a text of
2 kB ends the process where it overflows the stack. One level of brackets takes up to 14.2 kB of stack, an
``if`` 2 kB, an operator or an attribute 0.5 kB (measured with cedarpy 4.12.2). A text within the bounds of
this module takes less than 512 kB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

MAX_TEXT_BYTES = 1024 * 1024
"""The size of one text of policies."""

MAX_DEPTH = 24
"""Brackets within brackets in the text, and expressions within expressions of a condition."""

MAX_OPERATORS = 200
"""The operators ``&& || + - *`` and the conditions of one policy, all of which may be one chain."""

MAX_IFS = 64
"""The ``if`` of one policy."""

MAX_ATTRIBUTES = 64
"""Dots without ``&&`` or ``||`` between them."""

_TOKENS = re.compile(
    # as in the grammar of Cedar, a comment also ends with a carriage return
    # without its closing quote a text is a token too, because each quote in it would be searched to the end
    r'"(?:\\.|[^"\\])*(?P<closing>"?)|//[^\n\r]*'
    r"|(?<![A-Za-z_])(?:if|when|unless)(?![A-Za-z0-9_])"
    r"|\|\||&&|[-+*.;()\[\]{}]"
)
_CLOSING = {")": "(", "]": "[", "}": "{"}
_OPERATORS = frozenset({"&&", "||", "+", "-", "*", "when", "unless"})
_CHAINED = ("&&", "||")


class BoundError(ValueError):
    """A policy is beyond a bound; the text says which, and ``remedy`` what to do. Lines count from 1."""

    def __init__(self, problem: str, remedy: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.remedy = remedy
        self.line = line


def check_bounds(text: str) -> None:
    """Raise BoundError for a text that the parser of Cedar must not get.

    A text that is no Cedar may be refused for brackets that nothing closes.
    """
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise BoundError(f"more than {MAX_TEXT_BYTES:,} bytes", "split the file")
    opened: list[str] = []
    operators = ifs = dots = 0
    for match in _TOKENS.finditer(text):
        symbol, problem, remedy = match[0], "", "write several policies"
        if match["closing"] == "":
            problem, remedy = "a text in quotes that has no end", "close it"
        elif symbol in "([{":
            opened.append(symbol)
            if len(opened) > MAX_DEPTH:
                problem, remedy = (
                    f"more than {MAX_DEPTH} brackets within each other",
                    "nest less, or write several policies",
                )
        elif symbol in _CLOSING:
            # a bracket of another kind closes nothing
            if opened and opened[-1] == _CLOSING[symbol]:
                opened.pop()
        elif symbol == ";":
            if not opened:
                operators = ifs = dots = 0
        elif symbol in _OPERATORS:
            operators += 1
            if symbol in _CHAINED:
                dots = 0
            if operators > MAX_OPERATORS:
                problem = f"more than {MAX_OPERATORS} operators in one policy"
                remedy = 'compare with a set, ["a", "b"].contains(x), or write several policies'
        elif symbol == "if":
            ifs += 1
            if ifs > MAX_IFS:
                problem = f"more than {MAX_IFS} times if in one policy"
        elif symbol == ".":
            dots += 1
            if dots > MAX_ATTRIBUTES:
                problem = f"more than {MAX_ATTRIBUTES} attributes without && or || between them"
        if problem:
            raise BoundError(problem, remedy, text.count("\n", 0, match.start()) + 1)


def limit_depth(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The policy in its JSON form with no more than MAX_DEPTH expressions within each other.

    A chain of ``&&`` or ``||`` is parsed as one expression within the other for each term. Here it becomes a
    balanced tree, which has the same value, errors included. The engine takes about 60 expressions within
    each other. Raises BoundError for conditions that are too deep for other reasons.
    """
    conditions = list(tree["conditions"])
    for place, condition in enumerate(conditions):
        if _measure_depth(condition["body"]) > MAX_DEPTH:
            try:
                body = _balance(condition["body"])
            except RecursionError:  # a chain of other operators
                body = condition["body"]
            if (depth := _measure_depth(body)) > MAX_DEPTH:
                problem = f"{depth} expressions within each other, and {MAX_DEPTH} is the most"
                raise BoundError(problem, "write several policies")
            conditions[place] = {**condition, "body": body}
    return {**tree, "conditions": conditions}


def _measure_depth(tree: Any) -> int:
    """The number of expressions within each other, each of which is two levels of JSON."""
    depth, nodes = 0, [tree]
    while nodes:
        depth += 1
        nodes = [
            child
            for node in nodes
            for child in (node.values() if isinstance(node, Mapping) else node)
            if isinstance(child, (Mapping, list))
        ]
    return (depth + 1) // 2


def _balance(node: Any) -> Any:
    """An expression in which each chain of ``&&`` or ``||`` is a balanced tree."""
    if isinstance(node, list):
        return [_balance(element) for element in node]
    if not isinstance(node, Mapping):
        return node
    operator = next(iter(node), "")
    if operator not in _CHAINED:
        return {name: _balance(inner) for name, inner in node.items()}
    terms: list[Any] = []
    while operator in node:
        terms.append(_balance(node[operator]["right"]))
        node = node[operator]["left"]
    terms.append(_balance(node))
    terms.reverse()
    return _join(operator, terms)


def _join(operator: str, terms: list[Any]) -> Any:
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return {operator: {"left": _join(operator, terms[:middle]), "right": _join(operator, terms[middle:])}}


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """A policy without annotations: its scopes, and the whole as JSON ``text``.

    A tree of objects for each of a thousand policies would lengthen each garbage collection by 50 ms.
    ``item_attributes`` are those that its conditions read of the resource, None where they use the resource
    itself. Policies of an equal ``rule`` decide alike about the items of their scopes.
    """

    text: str
    principal: Mapping[str, Any]
    action: Mapping[str, Any]
    resource: Mapping[str, Any]
    has_conditions: bool
    item_attributes: tuple[str, ...] | None
    rule: str

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> PolicyBody:
        """The body of a policy in its JSON form."""
        names: set[str] = set()
        conditions = tree["conditions"]
        is_known = all(_find_attributes(part["body"], names) for part in conditions)
        kind = tree["resource"].get("entity_type")
        rule = json.dumps([tree["effect"], tree["principal"], kind, conditions], sort_keys=True)
        return cls(
            json.dumps(tree, sort_keys=True),
            tree["principal"],
            tree["action"],
            tree["resource"],
            bool(conditions),
            tuple(sorted(names)) if is_known else None,
            sha256(rule.encode()).hexdigest()[:32],
        )

    def parse(self) -> dict[str, Any]:
        """The JSON form."""
        tree: dict[str, Any] = json.loads(self.text)
        return tree


def _find_attributes(node: Any, names: set[str]) -> bool:
    """Note the attributes of the resource that an expression reads; False if it uses the resource itself."""
    if isinstance(node, list):
        return all(_find_attributes(element, names) for element in node)
    if not isinstance(node, Mapping):
        return True
    if node == {"Var": "resource"}:
        return False
    for operator in (".", "has"):
        inner = node.get(operator)
        if isinstance(inner, Mapping) and inner.get("left") == {"Var": "resource"} and "attr" in inner:
            names.add(inner["attr"])
            return True
    return all(_find_attributes(element, names) for element in node.values())
