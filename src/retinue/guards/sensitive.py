"""Finds secrets and personal data in text: by the prefixes of keys, and by checksums where a kind has one.

A number is a card or an IBAN only if its issuer, its length and its check digits are right, because
identifiers and times have the same shapes. A form that documents use in place of a secret is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from retinue.core.text import is_secret_name

SensitiveKind = Literal["key", "card", "iban", "email", "phone"]
KINDS: tuple[SensitiveKind, ...] = ("key", "card", "iban", "email", "phone")


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a text that is sensitive, from ``start`` to ``end`` (exclusive)."""

    kind: SensitiveKind
    start: int
    end: int


def find_sensitive(text: str, kinds: Collection[SensitiveKind] = KINDS) -> list[Finding]:
    """The sensitive parts of a text in their order; of parts that overlap, the one of the earlier kind."""
    findings: list[Finding] = []
    for kind in KINDS:
        if kind not in kinds:
            continue
        for start, end in _FINDERS[kind](text):
            if all(end <= other.start or start >= other.end for other in findings):
                findings.append(Finding(kind, start, end))
    return sorted(findings, key=lambda finding: finding.start)


# ── keys and tokens ──

_KEY = re.compile(
    r"""
      (?:AKIA|ASIA)[A-Z0-9]{16}\b                            # AWS
    | gh[pousr]_[A-Za-z0-9]{36,255}\b
    | github_pat_[A-Za-z0-9_]{40,255}\b
    | gl(?:pat|dt|ptt|rt|soat|ft)-[\w-]{20,64}               # GitLab
    | xox[abeoprs]-[\w-]{10,250}                             # Slack
    | xapp-\d-[\w-]{20,250}
    | sk-(?:[a-z]+\d*-)*[A-Za-z0-9_-]{20,250}                # OpenAI, Anthropic, OpenRouter
    | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,250}\b          # Stripe
    | whsec_[A-Za-z0-9+/=]{24,250}
    | AIza[\w-]{35}\b                                        # Google
    | ya29\.[\w-]{20,500}
    | GOCSPX-[\w-]{28}\b
    | npm_[A-Za-z0-9]{36}\b
    | pypi-AgE[\w-]{50,500}
    | hf_[A-Za-z0-9]{34,40}\b
    | SG\.[\w-]{16,32}\.[\w-]{32,64}                         # SendGrid
    | key-[0-9a-f]{32}\b                                     # Mailgun
    | do[opr]_v1_[0-9a-f]{64}\b                              # DigitalOcean
    | shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b                   # Shopify
    | glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}\b                     # Grafana
    | dckr_pat_[\w-]{20,64}
    | hv[sbr]\.[\w-]{24,200}                                 # Vault
    | dapi[0-9a-f]{32}\b                                     # Databricks
    | lin_api_[A-Za-z0-9]{40}\b
    | ntn_[A-Za-z0-9]{40,60}\b
    | secret_[A-Za-z0-9]{43}\b
    | PMAK-[0-9a-f]{24}-[0-9a-f]{34}\b
    | NRAK-[A-Z0-9]{27}\b
    | rtn[jmr]?_[\w.~+/=-]{16,}                              # Retinue
    | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}                  # a signed JSON Web Token
    | \d{8,10}:AA[\w-]{33}\b                                 # a bot of Telegram
    """,
    re.VERBOSE,
)
_BEFORE_KEY = re.compile(r"[\w-]\Z")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[A-Za-z0-9+/=\s\\:,.()]|-(?!----)){16,20000}"
    r"(?:-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_HEADER = re.compile(
    r"\b(?:authorization|proxy-authorization)[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+"
    r"(?P<value>[\w.~+/=-]{12,2000})",
    re.IGNORECASE,
)
_WEB_HOOK = re.compile(
    r"https://(?:hooks\.slack\.com/services/T\w{6,14}/B\w{6,14}/(?P<slack>\w{16,32})"
    r"|(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/\d{17,20}/(?P<discord>[\w-]{60,80}))"
)
_USER_OF_URL = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/?#:@\"'<>]{0,100}:(?P<value>[^\s/?#@\"'<>]{3,200})@"
)
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Za-z][\w.-]{0,60})[\"']?\s{0,3}(?::=|[=:])\s{0,3}"
    r"(?:\"(?P<double>[^\"\n]{6,500})\"|'(?P<single>[^'\n]{6,500})'|(?P<bare>[^\s\"'`,;&(){}\[\]<>]{8,500}))"
)
_ASSIGNED_IN_PROSE = re.compile(
    r"\b(?:password|passwort|kennwort|passphrase|passcode|mot de passe|contrase[nñ]a)"
    r"\s{0,3}(?:is|ist|lautet|est|es|:|=)\s{1,3}[\"'`]?(?P<value>[^\s\"'`,;]{6,200})",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"\b(?:session_?id|sid|jsessionid|phpsessid|connect\.sid|auth_?token|csrf_?token)=(?P<value>[\w.%+/-]{16,400})",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(
    r"(?:your|my|the|an?|some|insert|enter|replace|change|example|dummy|placeholder|redacted|hidden)\b"
    r"|.*(?:[*•…]{3}|\.{3}|xxxx|<|\$\{|\$\(|\{\{|%\(|_here\b|-here\b|example\b(?!\.))",
    re.IGNORECASE,
)
_ALL_CAPITALS = re.compile(r"[A-Z_]+\Z")
"""Words that documents write in the place of a secret."""
_REFERENCE = re.compile(
    r"(?:none|null|undefined|true|false|required|optional|string|process|os|env|self|this|config|settings)\b"
    r"|\$\w+\Z|[a-z]+(?:\.[a-z]\w*)+\Z|[a-z][a-z0-9+.-]*://",
    re.IGNORECASE,
)
"""Types, and references to a secret."""
_NO_SECRET_NAME = re.compile(r"(?:_id|Id|_name|_file|_path|_url|_type|_hint)\Z")
_DIGIT = re.compile(r"\d")
_SIGN = re.compile(r"[^A-Za-z0-9]")


def _find_keys(text: str) -> Iterator[tuple[int, int]]:
    for match in _PRIVATE_KEY.finditer(text):
        yield match.span()
    for match in _KEY.finditer(text):
        is_part = _BEFORE_KEY.search(text[max(0, match.start() - 1) : match.start()]) is not None
        if not is_part and not _is_placeholder(match[0]):
            yield match.span()
    for pattern in (_HEADER, _WEB_HOOK, _USER_OF_URL):
        for match in pattern.finditer(text):
            group = match.lastgroup or 0
            if not _is_placeholder(match[group]) and not _REFERENCE.match(match[group]):
                yield match.span(group)
    for match in _ASSIGNED.finditer(text):
        group = match.lastgroup or 0
        is_secret = is_secret_name(match["name"]) and not _NO_SECRET_NAME.search(match["name"])
        if is_secret and _is_secret_value(match[group]):
            yield match.span(group)
    for pattern in (_ASSIGNED_IN_PROSE, _COOKIE):
        for match in pattern.finditer(text):
            if _is_secret_value(match["value"].rstrip(".")):
                yield match.span("value")


def _is_placeholder(text: str) -> bool:
    return _PLACEHOLDER.match(text) is not None or _ALL_CAPITALS.match(text) is not None


def _is_secret_value(text: str) -> bool:
    """Whether a text that a secret name stands before can be a secret: no word, no reference, no path."""
    if _is_placeholder(text) or _REFERENCE.match(text) or " " in text or text.startswith(("/", "./", "~/")):
        return False
    has_digit, has_sign = _DIGIT.search(text) is not None, _SIGN.search(text) is not None
    has_both_cases = text.lower() != text != text.upper()
    return has_digit + has_sign + has_both_cases >= 2 or (has_digit and len(text) >= 16)


# ── cards and accounts ──

_CARD = re.compile(
    r"(?<![\w.+/-])(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{1,3})?|\d{4}([ -])\d{6}\2\d{4,5})"
    r"(?![\w/=-]|\.\d)"
)
_ISSUERS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"4", (13, 16, 19)),
    (r"5[1-5]|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720", (16,)),
    (r"3[47]", (15,)),
    (r"6011|64[4-9]|65", (16, 17, 18, 19)),
    (r"35(?:2[89]|[3-8]\d)", (16, 17, 18, 19)),
    (r"30[0-5]|3[689]", (14, 16, 17, 18, 19)),
    (r"62", (16, 17, 18, 19)),
    (r"220[0-4]", (16, 17, 18, 19)),
)
_ISSUER_PATTERNS = tuple((re.compile(prefix), lengths) for prefix, lengths in _ISSUERS)


def _find_cards(text: str) -> Iterator[tuple[int, int]]:
    for match in _CARD.finditer(text):
        if is_card(re.sub(r"[ -]", "", match[0])):
            yield match.span()


def is_card(digits: str) -> bool:
    """Whether digits are the number of a card: issuer, length and check digit (ISO/IEC 7812)."""
    if len(set(digits)) < 2:
        return False
    if not any(len(digits) in lengths and prefix.match(digits) for prefix, lengths in _ISSUER_PATTERNS):
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"
    r"|(?<![a-z0-9])[a-z]{2}\d{13,32}(?![A-Za-z0-9])"
)
_IBAN_LENGTHS: Mapping[str, int] = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
"""The length of an account's number by country (registry of ISO 13616)."""


def _find_ibans(text: str) -> Iterator[tuple[int, int]]:
    for match in _IBAN.finditer(text):
        # behind the number may stand words in capitals
        length = _IBAN_LENGTHS.get(match[0][:2].upper())
        end, count = match.start(), 0
        while length is not None and end < match.end() and count < length:
            count += text[end] not in " -"
            end += 1
        if count == length and not text[end : end + 1].isalnum() and is_iban(text[match.start() : end]):
            yield match.start(), end


def is_iban(text: str) -> bool:
    """Whether a text is the number of an account: country, length and check digits (ISO 13616)."""
    letters = text.replace(" ", "").replace("-", "").upper()
    if _IBAN_LENGTHS.get(letters[:2]) != len(letters):
        return False
    return int("".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])) % 97 == 1


# ── addresses and numbers of people ──

_EMAIL = re.compile(
    r"(?<![\w.+%/@-])(?P<user>[A-Za-z0-9](?:[\w.+%'-]{0,62}[\w+%-])?)@"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
    r"\.[A-Za-z]{2,24})(?![\w@-]|\.\w)"
)
_NO_MAIL_HOST = re.compile(
    r"\d(?:\.\d+)?x\.|.*\.(?:png|jpe?g|gif|webp|svg|ico|css|jsx?|tsx?|mjs|json|ya?ml|html?|invalid|local|service|socket|timer|target|mount)\Z",
    re.IGNORECASE,
)
"""Names of files with a scale or a version, and hosts that no mail reaches."""


_BEFORE_NO_MAIL = re.compile(r"(?:message-id|in-reply-to|references):[^\n]*\Z|://[^\s/]*\Z", re.IGNORECASE)
"""Ids of messages, and the user with a password in a URL."""


def _find_emails(text: str) -> Iterator[tuple[int, int]]:
    for match in _EMAIL.finditer(text):
        before, behind = text[max(0, match.start() - 60) : match.start()], text[match.end() : match.end() + 1]
        is_remote = match["user"] == "git" and behind in (":", "/")
        is_other = _BEFORE_NO_MAIL.search(before) is not None or behind == "("
        if (
            not is_remote
            and not is_other
            and ".." not in match["user"]
            and not _NO_MAIL_HOST.match(match["host"])
        ):
            yield match.span()


_PHONE = re.compile(
    r"(?<![\w.,+*/-])(?:"
    r"\+[1-9]\d{0,2}(?:[ .-]?\(0?\d{0,4}\))?(?:(?: / |[ ./-])?\d{1,5}){2,6}"
    r"|(?:1[ .-])?\(?[2-9]\d{2}\)[ .-]?[2-9]\d{2}[ .-]\d{4}|(?:1[.-])?[2-9]\d{2}([.-])[2-9]\d{2}\1\d{4}"
    r"|\(0\d{2,4}\)[ ]?\d{3,5}[ -]?\d{3,5}|(?<![\dA-Z] )0\d{2,4}[ /]\d{3,6}(?:[ -]\d{2,5}){1,2})"
    r"(?![\w+*/=-]|[.,:]\d)"
)


def _find_phones(text: str) -> Iterator[tuple[int, int]]:
    for match in _PHONE.finditer(text):
        if 8 <= sum(letter.isdigit() for letter in match[0]) <= 15 and len(set(match[0])) > 4:
            yield match.span()


_FINDERS: Mapping[SensitiveKind, Callable[[str], Iterator[tuple[int, int]]]] = {
    "key": _find_keys,
    "card": _find_cards,
    "iban": _find_ibans,
    "email": _find_emails,
    "phone": _find_phones,
}
