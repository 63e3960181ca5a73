"""Says what a request asks for that no skill offers: a kind of value, an action, or subject words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from retinue.mesh.search.actions import lacks_action
from retinue.mesh.search.background import background_share
from retinue.mesh.search.scoring import SearchQuery
from retinue.mesh.search.skill_texts import OWN_FIELDS, SkillText
from retinue.mesh.search.words import STOP_WORDS, split_words, stem

Knows = Callable[[str], bool]
"""Whether a visible skill has this stem."""

_KINDS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "an audio file": (
            "mp3 wav ogg flac m4a aac opus",
            "audio podcast recording voicemail",
            "audio sound voice speech music recording podcast mp3 wav transcribe",
        ),
        "an image": (
            "png jpg jpeg gif webp svg tiff bmp heic",
            "photo screenshot",
            "image picture photo screenshot png jpeg jpg graphic icon",
        ),
        "a video": ("mp4 mov avi mkv webm", "video", "video movie film clip mp4 frame"),
        "a PDF file": ("pdf", "pdf", "pdf document"),
        "a spreadsheet": ("xlsx xls csv ods", "spreadsheet", "spreadsheet csv excel xlsx sheet table row"),
        "an archive": ("zip tar gz tgz 7z rar", "", "zip archive tar compress unpack extract"),
        "an e-mail address": ("", "", "email mail recipient address user account contact"),
        "a web address": ("", "", "url uri link web website page http site address browse repository"),
    }
)
"""A kind of value → the extensions of such files, words for it in a request, words of skills that take it.

Skills that take any file take each kind of file.
"""

_ANY_FILE = frozenset({"file", "attach", "upload", "path"})
_FILE = re.compile(r"(?<![\w@])[\w/.~-]*\w\.([A-Za-z0-9]{2,4})\b(?!\.\w)")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w")
_URL = re.compile(r"https?://\S|(?<!\S)www\.\w")

_COMMON_SHARE = 0.03
"""A word that this share of packages has in its summary, such as ``file``, tells little about a skill."""

_MAX_WORDS = 5
_READ_CHARS = 2_000


def list_kinds(text: str) -> list[str]:
    """The kinds of values in a request, such as ``an audio file``."""
    text = text[:_READ_CHARS]
    extensions = {extension.lower() for extension in _FILE.findall(text)}
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", text)}
    kinds = [
        kind
        for kind, (endings, names, _) in _KINDS.items()
        if extensions.intersection(endings.split()) or words.intersection(names.split())
    ]
    if _MAIL.search(text):
        kinds.append("an e-mail address")
    if _URL.search(text):
        kinds.append("a web address")
    return kinds


def may_fit(skill: SkillText, query: SearchQuery) -> bool:
    """Whether the words that a skill shares with a request can mean that it serves the request.

    They cannot if the skill lacks a named action, if they are only in the parameters or in the text of the
    agent, or if its description has a common word such as ``file`` alone of several asked.
    """
    own = frozenset(" ".join(skill.fields[:OWN_FIELDS]).split())
    matches = {match[0] for stem_ in own if (match := _match_known(stem_, query)) is not None}
    if not matches or lacks_action(query.action, own):
        return False
    labels = " ".join(skill.fields[: OWN_FIELDS - 1]).split()
    return (
        len(matches) == len(query.asked)
        or any(_match_known(stem_, query) is not None for stem_ in labels)
        or any(background_share(stem_) < _COMMON_SHARE for stem_ in matches)
    )


def _match_known(stem_: str, query: SearchQuery) -> tuple[str, float] | None:
    return query.match(stem_) if stem_ in query.asked or stem_ in query.expanded else None


def _words_of_values(text: str) -> set[str]:
    """The words that occur only in addresses and names of files."""
    parts: tuple[list[str], list[str]] = ([], [])
    for part in text[:_READ_CHARS].split():
        is_value = any(pattern.search(part) for pattern in (_MAIL, _URL, _FILE))
        parts[is_value].append(part)
    words, values = (set(split_words(" ".join(some))) for some in parts)
    return values - words


def describe_gap(
    text: str, query: SearchQuery, hits: Sequence[SkillText], knows: Knows, *, is_likely: bool
) -> str | None:
    """A sentence about what is missing for a request, or None.

    ``hits`` are the skills that were found, best first. Subject words are named only if no hit is likely.
    """
    sentences = list(_describe_kinds(text, hits, knows))
    unsaid = STOP_WORDS | _words_of_values(text)
    if not is_likely:
        partly = {word for stem_, word in query.expanded.items() if knows(stem_)}
        words = [
            word
            for stem_, word in query.asked.items()
            if word.isalpha() and word not in unsaid and stem_ not in partly and not knows(stem_)
        ]
        if words:
            more = f" and {len(words) - _MAX_WORDS} more" if len(words) > _MAX_WORDS else ""
            sentences.append(f"no skill here speaks of: {', '.join(words[:_MAX_WORDS])}{more}")
    if hits and all(lacks_action(query.action, hit.stems) for hit in hits):
        sentences.append(f"none of these skills is for the action {query.action}")
    return "; ".join(sentences) or None


def _describe_kinds(text: str, hits: Sequence[SkillText], knows: Knows) -> Iterator[str]:
    kinds = list_kinds(text)
    stems: frozenset[str] = frozenset().union(*(hit.stems for hit in hits if kinds))
    for kind in kinds:
        endings, _, words = _KINDS[kind]
        takers = {stem(word) for word in words.split()}
        if takers & stems or (endings and _ANY_FILE & stems):
            continue
        group = "none of these skills" if hits and any(map(knows, sorted(takers))) else "no skill here"
        yield f"{group} takes {kind}"
