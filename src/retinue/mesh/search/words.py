"""The words of a text or an identifier, in the form in which they are compared.

Split at case, punctuation and digits, so that ``create_plan``, ``createPlan`` and ``create-plan``
are the same words; folded (NFKD without accents, casefold); stop words dropped; English endings
taken off. Han, Kana and Hangul, which set no spaces, become pairs of neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from retinue.mesh.search.stemming import stem

MAX_TEXT_CHARS = 20_000
"""What lies beyond is not read: neither a card nor a query may cost without bound."""

MAX_WORD_CHARS = 64
_CACHED_CHUNKS = 65_536

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
"""Words of the asking, not of what is asked; a small catalogue has no counts that would tell them apart."""

_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u109f\ufe0f\u200d"
_ASCII_CHUNK = re.compile(r"[Cc]\+\+|[CFcf]#|[A-Za-z0-9]+")
_CHUNK = re.compile(rf"[Cc]\+\+|[CFcf]#|(?:[^\W_]|[{_MARKS}])+|[\u2190-\u2bff\U0001f000-\U0001faff]")
_SMALL = rf"(?:[^\WA-Z\d_]|[{_MARKS}])"
_PART = re.compile(rf"[A-Z]+(?!{_SMALL})|[A-Z]?{_SMALL}+|\d+")
_ACCENTS = re.compile("[\u0300-\u036f\ufe0f\u200d]")
_UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+")
_SPELLED = {"c++": "cplusplus", "c#": "csharp", "f#": "fsharp"}


def split_words(text: str) -> list[str]:
    """The words of a text or an identifier, folded, stop words and endings included, in order.

    A chunk in camelCase gives its parts and itself: ``GitHub`` is found by ``git`` and ``github``.
    """
    return [word for chunk in _chunks(text) for word in _split_chunk(chunk)]


def stem_words(text: str) -> list[tuple[str, str]]:
    """The stems of the words that say something, each with its word, in order and repeated as they are.

    A text of stop words alone keeps them: ``get_all`` is a name that someone may ask for.
    """
    telling = list(chain.from_iterable(map(_stem_chunk, _chunks(text))))
    return telling or [(word, word) for word in split_words(text)]


def _chunks(text: str) -> list[str]:
    text = text[:MAX_TEXT_CHARS]
    return (_ASCII_CHUNK if text.isascii() else _CHUNK).findall(text)


@lru_cache(maxsize=_CACHED_CHUNKS)
def _stem_chunk(chunk: str) -> tuple[tuple[str, str], ...]:
    return tuple((stem(word), word) for word in _split_chunk(chunk) if word not in STOP_WORDS)


@lru_cache(maxsize=_CACHED_CHUNKS)
def _split_chunk(chunk: str) -> tuple[str, ...]:
    if chunk.isascii() and (chunk.isdigit() or (chunk.isalpha() and chunk[1:].islower())):
        words = [chunk.lower()]
    elif chunk.lower() in _SPELLED:
        words = [_SPELLED[chunk.lower()]]
    else:
        words = _split_mixed(unicodedata.normalize("NFC", _fold_accents(chunk)))
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
