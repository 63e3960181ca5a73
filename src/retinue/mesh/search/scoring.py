"""How well a skill's words answer the words asked: BM25 over weighted fields, the query widened.

A query is a weight per stem: 1 for a word asked, less for its synonyms, for words that begin alike,
and for what a mistyped word may mean. Tuned on one half of MetaTool, measured on the other
(`benchmarks/ranking.py`); character n-grams gained nothing beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rapidfuzz import process
from rapidfuzz.distance import OSA

from retinue.mesh.search.skill_texts import AGENT_FIELD, FIELD_WEIGHTS, SkillText
from retinue.mesh.search.synonyms import SYNONYMS
from retinue.mesh.search.text_index import Corpus, TextIndex
from retinue.mesh.search.words import stem_words

SATURATION = 1.5
LENGTH_SHARE = 0.4
"""BM25's k1 and b; skills are short, so that their length says less than that of a page."""

SYNONYM_WEIGHT = 0.4
PREFIX_WEIGHT = 0.25
LONE_PREFIX_WEIGHT = 0.5
"""For a word that is in no card: someone may still be typing it."""
TYPO_WEIGHT = 0.6

MAX_QUERY_STEMS = 24
"""Of a longer query the rarest words count that any skill has."""

MAX_REPEATS = 3.0

MAX_ALIKE = 16
MAX_TYPOS = 3
"""Unknown words of one query that are compared with the known ones; each costs milliseconds."""

_MIN_PREFIX = 4
_MIN_LONE_PREFIX = 3
_MIN_TYPO = 4
_TWO_SLIPS_FROM = 8
_NEAR_TERMS = 50_000


@dataclass(frozen=True, slots=True)
class Query:
    """``asked`` holds a word per stem; ``weights`` those stems and the ``wide`` ones that stand for them.

    ``idf`` weighs each stem by rarity; ``typos`` gives for an unknown word the stem and the word
    that are probably meant.
    """

    asked: Mapping[str, str]
    weights: Mapping[str, float]
    wide: Mapping[str, float]
    idf: Mapping[str, float]
    origin: Mapping[str, str]
    corpus: Corpus
    typos: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def read_query(text: str, index: TextIndex) -> Query:
    """``text`` as a query to the index."""
    pairs = stem_words(text)
    asked: dict[str, str] = {}
    repeated: dict[str, float] = {}
    for stem, word in pairs:
        asked.setdefault(stem, word)
        repeated[stem] = min(MAX_REPEATS, repeated.get(stem, 0.0) + 1.0)
    corpus = index.corpus()
    known = dict(index.counts(asked))
    rarest = sorted(asked, key=lambda stem: (stem not in known, known.get(stem, 0)))[:MAX_QUERY_STEMS]
    asked = {stem: asked[stem] for stem in rarest}
    wide, origin, typos = _widen(asked, known, index)
    counts = {**known, **index.counts(wide)}
    wide = {stem: weight * repeated[origin[stem]] for stem, weight in wide.items() if stem in counts}
    weights = {**{stem: repeated[stem] for stem in asked}, **wide}
    idf = {stem: rarity(counts.get(stem, 0), corpus.skills) for stem in weights}
    return Query(asked, weights, wide, idf, origin, corpus, typos)


def rarity(having: int, among: int) -> float:
    """How much a stem says that ``having`` of ``among`` skills have."""
    return math.log(1.0 + (among - having + 0.5) / (having + 0.5))


def score_skill(skill: SkillText, query: Query) -> float:
    """How well the skill answers; 0 where they share no word."""
    return score_fields([skill.fields], query, query.corpus.mean_length)


def score_fields(
    texts: Iterable[Sequence[str]], query: Query, mean_length: float, *, only_agent: bool = False
) -> float:
    """The score of one document made of the fields of several skills.

    The agent's own field is the same in all of them and counts once; with ``only_agent`` it is all.
    """
    found: dict[str, float] = {}
    length = 0.0
    weights = query.weights
    for number, fields in enumerate(texts):
        for at, words in enumerate(fields):
            if not words or (at == AGENT_FIELD and number) or (only_agent and at != AGENT_FIELD):
                continue
            stems = words.split()
            length += FIELD_WEIGHTS[at] * len(stems)
            for stem in stems:
                if stem in weights:
                    found[stem] = found.get(stem, 0.0) + FIELD_WEIGHTS[at]
    if not found:
        return 0.0
    damped = SATURATION * (1.0 - LENGTH_SHARE + LENGTH_SHARE * length / mean_length)
    return sum(
        weights[stem] * query.idf[stem] * often * (SATURATION + 1.0) / (often + damped)
        for stem, often in found.items()
    )


def coverage(skill: SkillText, query: Query) -> float:
    """The share of what was asked that the skill speaks of, 0 to 1; rare words count for more."""
    held = set(" ".join(skill.fields).split())
    met: dict[str, float] = {}
    for stem in held & query.weights.keys():
        of = query.origin.get(stem, stem)
        met[of] = max(met.get(of, 0.0), 1.0 if stem in query.asked else query.wide[stem])
    whole = sum(query.idf[stem] for stem in query.asked)
    return min(1.0, sum(query.idf[stem] * part for stem, part in met.items()) / whole) if whole else 0.0


def _widen(
    asked: Mapping[str, str], known: Mapping[str, int], index: TextIndex
) -> tuple[dict[str, float], dict[str, str], dict[str, tuple[str, str]]]:
    wide: dict[str, float] = {}
    origin: dict[str, str] = {}
    typos: dict[str, tuple[str, str]] = {}

    def add(stem: str, weight: float, of: str) -> None:
        if stem not in asked and weight > wide.get(stem, 0.0):
            wide[stem] = weight
            origin[stem] = of

    for stem, word in asked.items():
        for meant in SYNONYMS.get(stem, ()):
            add(meant, SYNONYM_WEIGHT, stem)
        lone = stem not in known
        for shorter in range(_MIN_PREFIX, len(stem)):
            add(stem[:shorter], PREFIX_WEIGHT, stem)
        begun = index.list_terms(stem, limit=MAX_ALIKE) if len(stem) >= _shortest(lone) else ()
        for term in begun:
            add(term.stem, LONE_PREFIX_WEIGHT if lone else PREFIX_WEIGHT, stem)
        if lone and not begun and len(typos) < MAX_TYPOS:
            slip = _find_typo(word, index)
            if slip is not None:
                typos[word] = slip
                add(slip[0], TYPO_WEIGHT, stem)
    return wide, origin, typos


def _shortest(lone: bool) -> int:
    return _MIN_LONE_PREFIX if lone else _MIN_PREFIX


def _find_typo(word: str, index: TextIndex) -> tuple[str, str] | None:
    """The known stem and word that one slip of the finger (two in a long word) makes into ``word``.

    Only words that begin with its first or its second letter: the first is seldom mistyped, except
    for a change of places.
    """
    if len(word) < _MIN_TYPO or not word.isalpha():
        return None
    slips = 2 if len(word) >= _TWO_SLIPS_FROM else 1
    near: list[tuple[float, int, str, str]] = []
    for letter in dict.fromkeys(word[:2]):
        terms = [t for t in index.list_terms(letter, limit=_NEAR_TERMS) if len(t.word) >= _MIN_TYPO]
        for forms in ([term.word for term in terms], [term.stem for term in terms]):
            close = process.extract(word, forms, scorer=OSA.distance, score_cutoff=slips, limit=_NEAR_TERMS)
            near += [(away, -terms[at].skills, terms[at].word, terms[at].stem) for _, away, at in close]
    best = min(near, default=None)
    return (best[3], best[2]) if best is not None else None
