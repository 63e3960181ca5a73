"""Finds text that is hidden from people, or that gives a model instructions, in results of foreign sources.

A finding says that a text addresses a model, not that the text is an attack: a page about prompt injection
quotes what it warns of. The words of one rule must stand close together, in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.foreign_text import find_hidden, strip_hidden

MAX_QUOTE_LENGTH = 80
MAX_TEXT_LENGTH = 1_000_000
"""Characters of one text that are searched."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """Why a text is taken for an instruction, and the words that say so."""

    rule: str
    quote: str
    path: str = ""


def _words(text: str) -> str:
    """A pattern for any of these words or phrases, which are separated by ``|``."""
    return rf"\b(?:{text})\b"


def _near(*parts: str, gap: int = 40) -> str:
    """The parts in their order in one sentence, at most ``gap`` characters between two of them."""
    return rf"[^.!?\n]{{0,{gap}}}?".join(parts)


_SETS_ASIDE = _near(
    _words("ignore|disregard|forget|override|bypass|do not follow|don't follow|stop following|discard"),
    _words("previous|prior|earlier|above|preceding|all|any|your|the|other|original|existing|system"),
    _words(
        "instructions?|prompts?|rules|guidelines|directives?|guardrails|safety rules|safety policies"
        "|system messages?"
    ),
    gap=24,
)
_GIVES_A_ROLE = (
    _near(
        _words("you are now|you are no longer"),
        _words("assistant|ai|model|agent|mode|bot|dan|jailbroken|unrestricted|developer"),
        gap=60,
    ),
    _near(
        _words("act|behave|respond"),
        _words("as if you are|as if you were|as an?"),
        _words(
            "unrestricted|jailbroken|without any rules|without rules|without restrictions|without limits"
            "|administrator|root"
        ),
    ),
    r"\b(?:enable|enter|activate|switch to) (?:developer|debug|god|admin|dan|jailbreak) mode\b",
)
_MARKS_ITSELF = (
    r"<\|?(?:im_start|im_end|system|start_header_id|endoftext|assistant)\|>|\[/?INST\]|<</?SYS>>",
    r"<(?:system|system[-_ ]?(?:prompt|message|reminder)|important|instructions?|admin|secret)>"
    r"(?=[^<]{0,400}\b(?:you|must|do not|don't|tool|call|before|instead|ignore|assistant)\b)",
    r"^\s{0,8}(?:#{1,4}\s{0,3}|\*{2})?(?:system|developer)"
    r"(?: (?:message|prompt|override|instructions?))?(?:\*{2})?\s?:\s{0,3}"
    r"(?=.{0,200}\b(?:you|must|ignore|assistant|do not|call)\b)",
    r"\b(?:new|updated|revised|real|actual|important) (?:system )?(?:instructions?|prompt|directives?)"
    r"(?: (?:for|to) (?:the |all |any )?(?:ai|assistants?|models?|llms?|agents?))?\s?:",
)
_SPEAKS_OF_THE_USER = _near(
    _words("do not|don't|never|without|must not|avoid"),
    _words(
        "tell|telling|inform|informing|mention|mentioning|notify|notifying|reveal|revealing|show|showing"
        "|alert|alerting|say|saying|ask|asking|disclose|disclosing"
    ),
    _words("user|human|operator|customer"),
    gap=24,
)
_ADDRESSES_A_MODEL = (
    r"\b(?:if|when|since|because) you(?:'re| are) (?:an? |the )?"
    r"(?:ai|llm|language model|assistant|chatbot|(?:ai |autonomous |coding )?agent)\b",
    r"\b(?:attention|note|notice|message|instructions?|hey|dear|hello|important)(?: to| for)?"
    r"(?: all| any| the)? ?,? (?:ai|llms?|language models?|(?:ai )?(?:assistants?|models?|agents?)|chatbots?)"
    r"\s?[:,!-]",
    r"\b(?:ai|llm)s?(?: (?:assistants?|models?|agents?))? "
    r"(?:reading|processing|summari[sz]ing|parsing) this\b",
    r"\bas an? (?:ai|llm|language model|assistant),? you (?:must|should|need|will|have to|are)\b",
)
_ASKS_FOR_SECRETS = (
    _near(
        _words("send|post|upload|forward|leak|exfiltrate|transmit|append|include|attach|pass|email|copy"),
        _words(
            "conversation|chat history|system prompt|api[- ]?keys?|credentials|passwords?|private keys?"
            "|secrets?|environment variables?|access tokens?|session tokens?|session cookies?|id_rsa"
            "|ssh keys?"
        ),
        _words("to|as|in|into|with|via"),
        r"(?:https?://|\b[\w.+-]+@[\w-]+\.|\b(?:parameter|argument|side ?note|field|query|url|webhook)\b)",
        gap=50,
    ),
    _near(
        _words("reveal|print|output|repeat|show|tell me|return|disclose"),
        _words("your|the"),
        _words(
            "system prompt|hidden prompt|hidden instructions|initial prompt|initial instructions"
            "|instructions above|instructions verbatim"
        ),
        gap=20,
    ),
)
_ASKS_FOR_CALLS = _near(
    _words("before|after|instead of|prior to|whenever|each time|every time"),
    _words(
        "using|calling|answering|responding|you use|you call|you answer|you respond|this tool|any other tool"
    ),
    _words("you must|you should|you need to|you have to|always|first|immediately"),
    _words("read|call|run|execute|open|send|fetch|invoke|delete"),
    gap=60,
)
_SENDS_BY_AN_IMAGE = (
    r"!\[[^\]\n]{0,100}\]\(\s?https?://[^\s()!\[]{1,300}[?&/][^\s()!\[]{0,100}(?:\{\{?|\$\{?|<|%7B|\[)\s?\w*"
    r"(?:data|secret|history|token|key|conversation|content|input|base64)"
)
_RULES = tuple(
    (rule, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
    for rule, patterns in (
        ("sets earlier instructions aside", [_SETS_ASIDE]),
        ("gives a model a role", _GIVES_A_ROLE),
        ("marks itself as a message of the system", _MARKS_ITSELF),
        ("speaks to the model about its user", [_SPEAKS_OF_THE_USER]),
        ("addresses a model", _ADDRESSES_A_MODEL),
        ("asks for secrets", _ASKS_FOR_SECRETS),
        ("asks for calls of tools", [_ASKS_FOR_CALLS]),
        ("sends data by the address of an image", [_SENDS_BY_AN_IMAGE]),
    )
    for pattern in patterns
)
_COMMENT = re.compile(r"<!--(?P<text>(?:(?!-->|<!--).){1,4000})-->", re.DOTALL)
_INVISIBLE = re.compile(
    r"<(?P<tag>span|div|p|font|section)\b[^<>]{0,300}"
    r"(?:display\s?:\s?none|visibility\s?:\s?hidden|font-size\s?:\s?0|opacity\s?:\s?0(?![.\d])"
    r"|color\s?[:=]\s?[\"']?(?:white|#fff(?:fff)?)\b|aria-hidden=.true)[^<>]{0,300}>"
    r"(?P<text>[^<]{1,4000})</(?P=tag)>",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\b(?:you (?:must|should|have to|are)|ignore|always|do not|don't|never|call|execute|send|instructions?"
    r"|assistant|ai|model|system prompt)\b",
    re.IGNORECASE,
)
_MIN_HIDDEN = 8
"""So many hidden characters are text: fewer occur in names and at the start of files."""


def find_instruction(text: str) -> Instruction | None:
    """The first reason to take a foreign text for an instruction; None for ordinary text."""
    text = text[:MAX_TEXT_LENGTH]
    visible = strip_hidden(text)
    if len(text) - len(visible) >= _MIN_HIDDEN and (hidden := find_hidden(text)) is not None:
        return Instruction("has hidden characters", f"{len(text) - len(visible)} characters such as {hidden}")
    for pattern in (_COMMENT, _INVISIBLE):
        for match in pattern.finditer(visible):
            if len(_REQUEST.findall(match["text"])) >= 2:
                return Instruction("has text that people do not see", _quote(match["text"]))
    for rule, pattern in _RULES:
        if (wording := pattern.search(visible)) is not None:
            return Instruction(rule, _quote(wording[0]))
    return None


def find_instructions(value: Any, path: tuple[str, ...] = ()) -> Iterator[Instruction]:
    """The instructions in the texts of a JSON value, each with its path (``items.0.body``)."""
    if isinstance(value, str):
        if (instruction := find_instruction(value)) is not None:
            yield Instruction(instruction.rule, instruction.quote, ".".join(path))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from find_instructions(inner, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from find_instructions(inner, (*path, str(place)))


def _quote(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_QUOTE_LENGTH else flat[: MAX_QUOTE_LENGTH - 1] + "…"
