"""Splits texts and identifiers into words, and reduces English words to stems.

Words are split at case, punctuation and digits, so ``create_plan``, ``createPlan`` and ``create-plan``
give the same words. They are folded (NFKD without accents, casefold), and stop words are dropped. Han,
Kana and Hangul, which are written without spaces, become pairs of neighbouring characters.

The stems are those of M. F. Porter (1980): ``plans``, ``planned`` and ``planning`` have the same one. A
stem need not be a word. Words of other languages mostly stay unchanged.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import TypeVar

T = TypeVar("T")

_CACHED_WORDS = 8_192

_LONGEST = 40
"""Longer runs of letters are not English words and are returned unchanged, to save time."""


_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "abli": "able",
    "bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize",
    "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous",
    "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip

_THIRD = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}

_FOURTH = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive",
    "ize", "ion", "al", "er", "ic", "ou",
)  # fmt: skip


_PLAIN = re.compile("[a-z]+")

_SECOND_ENDS = re.compile(f"(.+?)({'|'.join(sorted(_SECOND, key=len, reverse=True))})")

_THIRD_ENDS = re.compile(f"(.+?)({'|'.join(sorted(_THIRD, key=len, reverse=True))})")

_FOURTH_ENDS = re.compile(f"(.+?)({'|'.join(_FOURTH)})")


@lru_cache(maxsize=_CACHED_WORDS)
def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if not 3 <= len(word) <= _LONGEST or not _PLAIN.fullmatch(word):
        return word
    return _fifth(_fourth(_replace(_THIRD, _THIRD_ENDS, _replace(_SECOND, _SECOND_ENDS, _first(word)))))


def _first(word: str) -> str:
    """Remove plurals, ``-ed`` and ``-ing``; turn a final ``y`` into ``i``."""
    if word.endswith("sses") or word.endswith("ies"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for ending in ("ed", "ing"):
            if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
                word = _restore(word[: -len(ending)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _restore(base: str) -> str:
    """Restore a word without its ``-ed`` or ``-ing``: ``creat`` to ``create``, ``plann`` to ``plan``."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if len(base) > 1 and base[-1] == base[-2] and base[-1] not in "aeioulsz":
        return base[:-1]
    if _measure(base) == 1 and _ends_short(base):
        return base + "e"
    return base


def _replace(table: dict[str, str], ends: re.Pattern[str], word: str) -> str:
    match = ends.fullmatch(word)
    if match is not None and _measure(match[1]) > 0:
        return match[1] + table[match[2]]
    return word


def _fourth(word: str) -> str:
    match = _FOURTH_ENDS.fullmatch(word)
    if match is None or _measure(match[1]) <= 1:
        return word
    return word if match[2] == "ion" and match[1][-1] not in "st" else match[1]


def _fifth(word: str) -> str:
    """Remove a final ``e``, and one of two final ``l``."""
    if word.endswith("e"):
        base = word[:-1]
        measure = _measure(base)
        if measure > 1 or (measure == 1 and not _ends_short(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _shape(text: str) -> str:
    """``c`` for each consonant, ``v`` for each vowel; a ``y`` is a vowel after a consonant."""
    shape = ""
    for letter in text:
        is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


def _measure(text: str) -> int:
    """The number of places where a consonant follows a vowel."""
    return _shape(text).count("vc")


def _has_vowel(text: str) -> bool:
    return "v" in _shape(text)


def _ends_short(text: str) -> bool:
    return _shape(text).endswith("cvc") and text[-1] not in "wxy"


MAX_TEXT_CHARS = 20_000
"""The rest of a longer text is ignored, which bounds the cost of a card or a query."""


MAX_WORD_CHARS = 64

_CACHED_CHUNKS = 32_768
"""Chunks whose words are known, about 12 MB: those of a large mesh are drawn from as many."""


_ASKING = """
a able about above after again all also am an and any anyone anything are aren as ask at be because
been before being below between both but by came can cannot come could couldn d did didn do does
doesn doing don done down during each else etc ever every few for from further get gets getting give
given gives go goes going gonna got had hadn has hasn have haven having he hello help helps her here
hers herself hey hi him himself his how however i if in into is isn it its itself just kindly know
let lets like ll looking m made make makes many may maybe me might more most much must my myself
need needs no nor not now of off ok on once one only or other our ours ourselves out over own
perhaps please provide provides re really s same shall she should shouldn show so some someone
something such sure t take tell than thank thanks that the their theirs them themselves then there
these they thing things this those through to too trying under until up upon us use used user using
ve very via want wanted wants was wasn we well were weren what whatever when where whether which
while who whom whose why will wish with within without won wonder wondering would wouldn yes yet you
your yours yourself
"""

STOP_WORDS = frozenset(_ASKING.split())
"""Words of the request itself, not of its subject; in a small catalogue the counts do not show which."""


GREETINGS = frozenset({"hello", "hey", "hi"})
"""Stop words that a skill may be about. A text keeps them, so that a query of them alone finds it."""


_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u109f\ufe0f\u200d"

_ASCII_CHUNK = re.compile(r"[Cc]\+\+|[CFcf]#|[A-Za-z0-9]+")

_CHUNK = re.compile(rf"[Cc]\+\+|[CFcf]#|(?:[^\W_]|[{_MARKS}])+|[\u2190-\u2bff\U0001f000-\U0001faff]")

_SMALL = rf"(?:[^\WA-Z\d_]|[{_MARKS}])"

_PART = re.compile(rf"[A-Z]+(?!{_SMALL})|[A-Z]?{_SMALL}+|\d+")

_ACCENTS = re.compile("[\u0300-\u036f\ufe0f\u200d]")

_UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+")

_SPELLED = {"c++": "cplusplus", "c#": "csharp", "f#": "fsharp"}


def split_words(text: str) -> list[str]:
    """The folded words of a text or an identifier, in order, with stop words and endings.

    A chunk in camelCase gives its parts and itself: ``GitHub`` is found by ``git`` and ``github``.
    """
    return [word for chunk in _chunks(text) for word in _split_chunk(chunk)]


def stem_words(text: str, *, keep: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """The stems of all words but stop words, each with its word, in order, with repetitions.

    Stop words in ``keep`` stay. A text of stop words alone keeps them: ``get_all`` is a name that someone
    may ask for.
    """
    telling = list(chain.from_iterable(map(_stems_beside(keep).__getitem__, _chunks(text))))
    return telling or [(word, word) for word in split_words(text)]


def join_stems(text: str, *, keep: frozenset[str] = frozenset()) -> str:
    """The stems of `stem_words`, separated by spaces.

    A text that is indexed has hundreds of words, of which most are known.
    """
    joined = " ".join(filter(None, map(_stems_beside(keep).joined.__getitem__, _chunks(text))))
    return joined or " ".join(split_words(text))


def _chunks(text: str) -> list[str]:
    text = text[:MAX_TEXT_CHARS]
    return (_ASCII_CHUNK if text.isascii() else _CHUNK).findall(text)


class _Stems(dict[str, tuple[tuple[str, str], ...]]):
    """The stems of a chunk, each with its word, by chunk; ``joined`` has the stems alone as one text.

    A full table is emptied, because a look-up in a dict costs a third of one in an `lru_cache`.
    """

    def __init__(self, keep: frozenset[str]) -> None:
        self.joined = _JoinedStems(self)
        self._stop_words = STOP_WORDS - keep

    def __missing__(self, chunk: str) -> tuple[tuple[str, str], ...]:
        kept = (word for word in _split_chunk(chunk) if word not in self._stop_words)
        pairs = tuple((stem(word), word) for word in kept)
        _remember(self, chunk, pairs)
        return pairs


class _JoinedStems(dict[str, str]):
    """The stems of a chunk as one text, by chunk."""

    def __init__(self, stems: _Stems) -> None:
        self._stems = stems

    def __missing__(self, chunk: str) -> str:
        joined = " ".join([stem for stem, _ in self._stems[chunk]])
        _remember(self, chunk, joined)
        return joined


def _remember(table: dict[str, T], chunk: str, stems: T) -> None:
    """Add a chunk to a table; a longer chunk than a word is not likely to come again."""
    if len(chunk) <= MAX_WORD_CHARS:
        if len(table) >= _CACHED_CHUNKS:
            table.clear()
        table[chunk] = stems


@lru_cache(maxsize=4)
def _stems_beside(keep: frozenset[str]) -> _Stems:
    """The table for texts that keep these stop words."""
    return _Stems(keep)


@lru_cache(maxsize=_CACHED_CHUNKS)
def _split_chunk(chunk: str) -> tuple[str, ...]:
    if chunk.isascii() and (chunk.isdigit() or (chunk.isalpha() and chunk[1:].islower())):
        words = [chunk.lower()]
    elif chunk.lower() in _SPELLED:
        words = [_SPELLED[chunk.lower()]]
    else:
        # a sign may stand for several words, which only its folded form separates
        folded = unicodedata.normalize("NFC", _fold_accents(chunk)).split()
        words = [word for part in folded for word in _split_mixed(part)]
    return tuple(word[:MAX_WORD_CHARS] for word in words if len(word) > 1 or not word.isascii())


def _split_mixed(chunk: str) -> list[str]:
    if _UNSPACED.search(chunk):
        return [word for part in _split_scripts(chunk) for word in part]
    whole = chunk.casefold()
    parts = [part.casefold() for part in _PART.findall(chunk)]
    if len(parts) < 2:
        return [whole]
    # Of `base64` and `mp3` the letters count alone where they are a word; a lone digit never does.
    return [*(part for part in parts if len(part) > 2 and not part.isdigit()), whole]


def _split_scripts(chunk: str) -> Iterator[list[str]]:
    at = 0
    for run in _UNSPACED.finditer(chunk):
        if run.start() > at:
            yield _split_mixed(chunk[at : run.start()])
        signs = run[0].casefold()
        yield [signs[i : i + 2] for i in range(len(signs) - 1)] or [signs]
        at = run.end()
    if at < len(chunk):
        yield _split_mixed(chunk[at:])


def _fold_accents(text: str) -> str:
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
