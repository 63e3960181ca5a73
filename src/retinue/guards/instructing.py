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
_MODEL = (
    r"(?:(?:ai|llm|ki|ia|gpt|automated|digital|autonomous|coding|virtual)[ -](?:coding |powered )?"
    r"(?:assistants?|agents?|models?|readers?|reviewers?|helpers?|contributors?|bots?|systems?|crawlers?)"
    r"|llms?|language models?|assistants?|chatbots?|agents|models?|copilots?|ai|ki[- ]?assistent\w*|ki"
    r"|l['’]ia|ia"
    r"|asistente(?: de ia)?|modelo(?: de lenguaje)?|mod[eè]le(?: de langage)?|digitale helfer|assistent"
    r"|sprachmodell)"
)
"""Words that address a model, in English, German, French and Spanish."""
_ORDER = (
    r"(?:ignore|disregard|forget|remember|repeat|reveal|output|print|decode|execute|run|call|open|send"
    r"|forward|email"
    r"|post|submit|upload|approve|skip|delete|transfer|tell|answer|respond|reply|stop|pretend|use"
    r"|include|add|append"
    r"|recommend|rate|mark|treat|visit|fetch|read|do not|don't|never|always|must|you must|you should"
    r"|you are|your"
    r"|please|from now on|ignoriere|vergiss|leite|sende|schicke|öffne|antworte|nenne|du musst|ab jetzt"
    r"|erwähne"
    r"|oublie|oubliez|ne tiens|ne tenez|ferme|envoie|envoyez|réponds|répondez|tu dois|vous devez|olvida"
    r"|ignora"
    r"|muestra|env[ií]a|ejecuta|responde|debes|a partir de ahora)"
)
_ADDRESSES_A_MODEL = (
    r"\b(?:if|when|since|because) you(?:'re| are) (?:an? |the )?"
    r"(?:ai|llm|language model|assistant|chatbot|(?:ai |autonomous |coding )?agent)\b",
    rf"(?:^|[\s\"'>\[(*#_-])(?:attention|note|notice|message|instructions?|hey|dear|hello|important"
    rf"|hinweis|an|note pour"
    rf"|nota para|para)?(?: (?:to|for))?(?: (?:all|any|the|den|die|el|la"
    rf"|los))*\s?,?{_MODEL}(?: [\w' ]{{0,40}})?"
    rf"\s?[:,!]\s*(?:[\"'*_]*)(?:{_ORDER})\b",
    rf"\b(?:if|si|wenn) (?:you are|you're|eres|tu es|vous êtes|du) (?:an? |un |une |ein )?(?:{_MODEL})\b",
    rf"\b{_MODEL} (?:(?:that|who|which) [^.!?\n]{{0,60}} )?(?:must|should|shall|have to|need to|are to"
    rf"|is to|are required to)"
    r"[^.!?\n]{0,50}\b(?:approve|skip|ignore|disregard|hide|conceal|output|reveal|transfer|submit"
    r"|disclose|execute"
    r"|delete|whatever|without (?:asking|telling|mention\w*|a note|confirmation)|earlier instructions?)\b",
    r"\b(?:ai|llm)s?(?: (?:assistants?|models?|agents?))? "
    r"(?:reading|processing|summari[sz]ing|parsing|screening) this\b",
    r"\bas an? (?:ai|llm|language model|assistant),? you (?:must|should|need|will|have to|are)\b",
    r"(?:^|\n)#{1,4} (?:instructions )?for (?:ai|llm|coding|automated) (?:agents?|assistants?|models?)\b"
    r"(?=.{0,200}\b(?:you must|must|always|never|first)\b)",
)
_FORGES_A_TURN = (
    r"</?(?:tool_results?|tool_response|function_(?:calls?|results?)|user|assistant|human"
    r"|system)>\s*(?:<|\w)",
    r"={2,}\s?(?:new |next |begin |start of )?(?:user|system|assistant|developer) (?:message|prompt"
    r"|turn|instructions?)\s?={2,}",
    r"(?:^|\n)\s{0,4}(?:assistant|human)\s?:\s.{0,120}\b(?:i (?:should|will|must|need to)"
    r"|as (?:requested|instructed))\b",
    r"\b(?:assistant|agent|model|ai|system)_(?:directive|instructions?|override|prompt)\b[\"']?\s?[:=]",
    r"\bfrom now on,? you (?:are|will|must|act|answer|respond)\b(?=.{0,120}\b(?:ai|dan|content policy"
    r"|restrict|filter|model"
    r"|assistant|instructions?)\b)",
    r"\b(?:pretend|imagine|act as if) (?:that )?you are\b.{0,60}\b(?:admin|administrator|root|terminal"
    r"|shell|developer"
    r"|unrestricted)\b",
)
_HIDES_FROM_PEOPLE = (
    _near(
        _words("do not|don't|no need to|without|must not|need not|not necessary to"),
        _words(
            "mention|mentioning|show|showing|tell|telling|report|reporting|note|bring up|bring it up"
            "|asking|ask|comment|commenting"
        ),
        _words(
            "it|this|that|him|her|them|the command|the step|this step|again|in (?:your|the) summary|me again"
        ),
        gap=16,
    )
    + r"(?=.{0,160}\b(?:assistant|agent|ai|model|summary|answer|user|owner)\b)",
    r"\b(?:so that|and) (?:nobody|no one|the user does not|the user doesn't) (?:notices?|sees?|knows?)\b",
    r"\b(?:erwähne|erwähn|sag|verrate|zeige)\w*\b[^.!?\n]{0,60}\b(?:benutzer|nutzer"
    r"|anwender)\b[^.!?\n]{0,20}\bnicht"
    r"|\b(?:benutzer|nutzer|anwender)\b[^.!?\n]{0,40}\bnichts\b[^.!?\n]{0,20}\bwissen",
    r"\bn['’]en parle(?:z)? pas\b|\bne (?:le )?(?:dis|dites|mentionne[zs]?)\b[^.!?\n]{0,30}\butilisateur",
    r"\b(?:oculta|no (?:se )?lo (?:digas|menciones)|no menciones)\b[^.!?\n]{0,40}\busuario",
)
_SETS_ASIDE_ELSEWHERE = (
    r"\b(?:ignorier\w*|vergiss|missachte\w*)\b[^.!?\n]{0,30}\b(?:anweisung\w*|vorgaben|regeln"
    r"|instruktion\w*)\b",
    r"\b(?:ignore[zs]?|oublie[zs]?|ne ti(?:ens|ent) pas compte)\b[^.!?\n]{0,30}\b(?:instructions"
    r"|consignes|r[èe]gles)\b",
    r"\b(?:ignora|olvida)\w*\b[^.!?\n]{0,30}\b(?:instrucciones|reglas|indicaciones)\b",
    r"\b(?:any )?(?:earlier|previous|prior) instructions?[^.!?\n]{0,40}\b(?:void|no longer|do not apply"
    r"|invalid|cancell?ed)\b",
    r"\b(?:your|the) instructions (?:have been|are|were) (?:updated|replaced|changed"
    r"|overridden)\b(?=.{0,160}\b(?:run|call|must|now|do not)\b)",
    r"\b(?:disregard|ignore|forget) (?:the )?(?:user|agenda|other results|all criteria"
    r"|everything (?:above|before|said))\b",
    r"\byour new (?:task|goal|objective|role|instructions?) (?:is|are)\b",
)
_ASKS_FOR_THE_PROMPT = (
    r"\brepeat (?:everything|all|the (?:text|words|content)) (?:above|before)\b",
    r"\b(?:output|print|show|list|reveal|muestra|zeige)\b[^.!?\n]{0,40}\b(?:hidden instructions"
    r"|tool definitions|system ?prompt"
    r"|initial instructions|mensaje de sistema|systemprompt)\b",
)
_PASSES_ON = (
    r"\b(?:decode|base64)\b[^.!?\n]{0,60}\b(?:carry out|execute|follow|run) (?:what|it|the)\b",
    r"\b(?:contents? of|include|put|append|attach|share"
    r"|paste)\b[^.!?\n]{0,60}\b(?:the )?(?:current )?(?:conversation|chat history"
    r"|user's (?:name|calendar|data|e?mails?)|name of the current user|visitor's (?:full )?name"
    r"|api keys?|environment)\b"
    r"(?=[^\n]{0,160}(?:https?://|\bquery\b|\burl\b|\bfield\b|\bpublic))",
    r"\b(?:curl|wget)\b[^\n]{0,120}\|\s?(?:ba|z)?sh\b(?=.{0,200}\b(?:do not|don't"
    r"|without)\b.{0,40}\b(?:show|mention|summary|tell)\b)",
    r"\b(?:user|owner|customer) (?:has |have )?(?:already )?(?:authori[sz]ed|agreed|approved|consented)\b"
    r"(?=.{0,160}\b(?:assistant|agent|model|ai|no need|without|reset|purchase|transfer)\b)",
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
        ("forges a turn of the conversation", _FORGES_A_TURN),
        ("asks to hide something from people", _HIDES_FROM_PEOPLE),
        ("sets earlier instructions aside", _SETS_ASIDE_ELSEWHERE),
        ("asks for the prompt of the model", _ASKS_FOR_THE_PROMPT),
        ("asks to pass on what the model knows", _PASSES_ON),
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
"""This many hidden characters are text; fewer occur in names and at the start of files."""


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
