"""English endings taken off, so that ``plans``, ``planned`` and ``planning`` are one word.

The algorithm of M. F. Porter (1980), written as tables. A stem need not be a word; it only has to be
the same for words that belong together. Words of other languages mostly pass unchanged.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CACHED_WORDS = 65_536
_LONGEST = 40
"""Longer runs of letters are no English words (and the patterns below would only cost time)."""

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
    """Plurals, ``-ed`` and ``-ing``, and a last ``y``."""
    if word.endswith("sses") or word.endswith("ies"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for ending in ("ed", "ing"):
            if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
                word = _mend(word[: -len(ending)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mend(base: str) -> str:
    """What is left of a word without its ``-ed`` or ``-ing``: ``creat`` is ``create``, ``plann`` ``plan``."""
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if len(base) > 1 and base[-1] == base[-2] and base[-1] not in "aeioulsz":
        return base[:-1]
    if _measure(base) == 1 and _ends_short(base):
        return base + "e"
    return base


def _replace(table: dict[str, str], ends: re.Pattern[str], word: str) -> str:
    found = ends.fullmatch(word)
    if found is not None and _measure(found[1]) > 0:
        return found[1] + table[found[2]]
    return word


def _fourth(word: str) -> str:
    found = _FOURTH_ENDS.fullmatch(word)
    if found is None or _measure(found[1]) <= 1:
        return word
    return word if found[2] == "ion" and found[1][-1] not in "st" else found[1]


def _fifth(word: str) -> str:
    """A last ``e``, and one of two last ``l``."""
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
    """How often vowels are followed by consonants."""
    return _shape(text).count("vc")


def _has_vowel(text: str) -> bool:
    return "v" in _shape(text)


def _ends_short(text: str) -> bool:
    return _shape(text).endswith("cvc") and text[-1] not in "wxy"
