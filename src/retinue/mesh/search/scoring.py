"""Scores texts against a query: BM25 over weighted fields, with partial credit for similar words.

A stem of a text matches a stem of the query if they are equal, if it continues or corrects an unknown
word of the query, or if both share enough character 4-grams. Decision 0025 has the
measurements, `benchmarks/ranking.py` repeats them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from retinue.mesh.search.actions import action_of_skill, compare_actions, read_action
from retinue.mesh.search.background import background_share
from retinue.mesh.search.skill_texts import AGENT_FIELD, FIELD_WEIGHTS, PARAMETERS_FIELD, SkillText
from retinue.mesh.search.text_index import Corpus, Term, TextIndex
from retinue.mesh.search.values import list_value_kinds, share_taken
from retinue.mesh.search.words import stem_words

SATURATION = 1.5
LENGTH_SHARE = 0.5
"""BM25's k1 and b."""

PARTIAL_WEIGHT = 0.5
"""The weight of a continuation or a correction; of a similar stem, times the similarity."""

MIN_SIMILARITY = 0.3
"""The smallest Dice coefficient of the 4-grams of two stems that are similar."""

ACTION_WEIGHT = 0.2
"""The share of its score that a skill gains whose action is that of the request; see `compare_actions`."""

VALUE_WEIGHT = 0.1
"""The share of its score that a skill gains whose parameters take the kinds of values of the request."""

BACKGROUND_SKILLS = 200
"""How many skills with the words of `background_share` are counted beside those of the index.

In a small catalogue its own counts say little.
"""

MAX_QUERY_STEMS = 24
"""A longer query counts only with the stems that the fewest skills have."""

MAX_CONTINUATIONS = 16
MAX_CORRECTIONS = 3
"""How many unknown words of one query are corrected; each takes milliseconds."""

_MIN_PREFIX_CHARS = 3
_MIN_CORRECTED_CHARS = 4
_TWO_ERRORS_FROM_CHARS = 8
_MAX_CORRECTION_TERMS = 50_000
_GRAM_CHARS = 4
_HEAD, _TAIL = 3, 4
"""Similar stems share their first 3 or last 4 characters; other pairs are not worth the time to compare."""

_CACHED_STEMS = 8_192


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A text to search for.

    ``asked`` maps its stems to words, ``rarity`` to their inverse document frequency. ``expanded`` maps
    further stems of the index to the unknown stem that they continue or correct. ``corrections`` maps
    an unknown word to the term that was probably meant. ``action`` is the class of its verb, ``kinds``
    are those of its values.
    """

    asked: Mapping[str, str]
    rarity: Mapping[str, float]
    expanded: Mapping[str, str]
    corrections: Mapping[str, Term]
    corpus: Corpus
    action: str | None = None
    kinds: frozenset[str] = frozenset()
    worths: dict[str, float] = field(default_factory=dict)
    """The results of `worth` so far."""
    _stems_by_gram: dict[str, list[str]] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)
    """The first and the last characters of the stems; a stem that has none of them is not similar."""

    def __post_init__(self) -> None:
        for stem in self.asked:
            self.worths[stem] = self.rarity[stem]
            self.ends.update((stem[:_HEAD], stem[-_TAIL:]))
            for gram in _grams(stem):
                self._stems_by_gram.setdefault(gram, []).append(stem)
        for stem, query_stem in self.expanded.items():
            self.worths[stem] = PARTIAL_WEIGHT * self.rarity[query_stem]

    def match(self, stem: str) -> tuple[str, float] | None:
        """The query stem that a stem of a text matches, and the weight of the match; None without one."""
        if stem in self.asked:
            return stem, 1.0
        if stem in self.expanded:
            return self.expanded[stem], PARTIAL_WEIGHT
        grams = _grams(stem)
        shared: dict[str, int] = {}
        for gram in grams:
            for query_stem in self._stems_by_gram.get(gram, ()):
                shared[query_stem] = shared.get(query_stem, 0) + 1
        best: tuple[float, str, float] | None = None
        for query_stem, count in shared.items():
            similarity = 2 * count / (len(grams) + len(_grams(query_stem)))
            if similarity >= MIN_SIMILARITY:
                weight = PARTIAL_WEIGHT * similarity
                candidate = weight * self.rarity[query_stem], query_stem, weight
                best = candidate if best is None else max(best, candidate)
        return best[1:] if best is not None else None

    def worth(self, stem: str) -> float:
        """The most that a stem of a text adds to a score; 0 if it matches no stem of the query."""
        worth = self.worths.get(stem)
        if worth is None:
            match = self.match(stem) if stem[:_HEAD] in self.ends or stem[-_TAIL:] in self.ends else None
            worth = self.worths[stem] = match[1] * self.rarity[match[0]] if match is not None else 0.0
        return worth


def read_query(text: str, index: TextIndex) -> SearchQuery:
    """``text`` as a query to the index. A repeated word counts once."""
    words: dict[str, str] = {}
    for stem, word in stem_words(text):
        words.setdefault(stem, word)
    corpus = index.corpus()
    counts = index.counts(words)
    rarest = sorted(words, key=lambda stem: (stem not in counts, counts.get(stem, 0)))[:MAX_QUERY_STEMS]
    expanded: dict[str, str] = {}
    corrections: dict[str, Term] = {}
    for stem in rarest:
        if stem in counts:
            continue
        long_enough = len(stem) >= _MIN_PREFIX_CHARS
        terms = list(index.list_terms(stem, limit=MAX_CONTINUATIONS)) if long_enough else []
        if not terms and len(corrections) < MAX_CORRECTIONS:
            terms = _correct(words[stem], index)
            corrections.update((words[stem], term) for term in terms)
        for term in terms:
            expanded.setdefault(term.stem, stem)
    return SearchQuery(
        {stem: words[stem] for stem in rarest},
        {stem: rarity(stem, counts.get(stem, 0), corpus.skills) for stem in rarest},
        {stem: unknown for stem, unknown in expanded.items() if stem not in rarest},
        corrections,
        corpus,
        read_action(text),
        list_value_kinds(text),
    )


def rarity(stem: str, count: int, skills: int) -> float:
    """The weight of a stem that ``count`` of ``skills`` have, and the background as often as elsewhere."""
    expected = BACKGROUND_SKILLS * background_share(stem)
    return inverse_frequency(count + expected, skills + BACKGROUND_SKILLS)


def inverse_frequency(count: float, skills: int) -> float:
    """BM25's weight of a stem that ``count`` of ``skills`` have."""
    return math.log(1.0 + (skills - count + 0.5) / (count + 0.5))


def score_skill(skill: SkillText, query: SearchQuery) -> float:
    """The score of one skill; 0 if it has no stem of the query, only similar ones."""
    score = score_fields([skill.fields], query, query.corpus.mean_length)
    if score > 0.0 and query.action is not None:
        score *= 1.0 + ACTION_WEIGHT * compare_actions(query.action, action_of_skill(skill.skill_id))
    if score > 0.0 and query.kinds:
        score *= 1.0 + VALUE_WEIGHT * share_taken(query.kinds, skill.fields[PARAMETERS_FIELD])
    return score


def score_fields(texts: Iterable[Sequence[str]], query: SearchQuery, mean_length: float) -> float:
    """The score of one document that consists of the fields of several skills of one agent.

    The field of the agent is the same in all of them and counts once.
    """
    frequencies: dict[str, float] = {}
    length = 0.0
    worths, ends = query.worths, query.ends
    for number, fields in enumerate(texts):
        for at, words in enumerate(fields):
            if not words or (at == AGENT_FIELD and number):
                continue
            weight = FIELD_WEIGHTS[at]
            stems = words.split(" ")
            length += weight * len(stems)
            for stem in stems:
                worth = worths.get(stem)
                if worth is None:
                    # most stems are not similar: a call for each of them takes half of the time of a search
                    is_near = stem[:_HEAD] in ends or stem[-_TAIL:] in ends
                    worth = query.worth(stem) if is_near else worths.setdefault(stem, 0.0)
                if worth:
                    frequencies[stem] = frequencies.get(stem, 0.0) + weight
    if not any(stem in query.asked or stem in query.expanded for stem in frequencies):
        # An index proposes no skill for similar words alone; neither may a search within a few listings,
        # or its hits would show that some agents are hidden.
        return 0.0
    damping = SATURATION * (1.0 - LENGTH_SHARE + LENGTH_SHARE * length / mean_length)
    return sum(worths[stem] * tf * (SATURATION + 1.0) / (tf + damping) for stem, tf in frequencies.items())


def match_asked(skill: SkillText, query: SearchQuery) -> dict[str, float]:
    """The stems of the query that the skill matches, each with the weight of its best match."""
    matched: dict[str, float] = {}
    for stem in skill.stems:
        match = query.match(stem)
        if match is not None:
            matched[match[0]] = max(matched.get(match[0], 0.0), match[1])
    return matched


def _correct(word: str, index: TextIndex) -> list[Term]:
    """The known term with one typing error less (two in a long word), the most frequent of several.

    Only terms that begin with the first or second letter of the word are compared, because a first letter is
    seldom wrong, but may have changed places with the second.
    """
    if len(word) < _MIN_CORRECTED_CHARS or not word.isalpha():
        return []
    # loaded at the first unknown word: most processes never search
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    errors = 2 if len(word) >= _TWO_ERRORS_FROM_CHARS else 1
    near: list[tuple[float, int, str, Term]] = []
    for letter in dict.fromkeys(word[:2]):
        terms = index.list_terms(letter, limit=_MAX_CORRECTION_TERMS)
        terms = [term for term in terms if len(term.word) >= _MIN_CORRECTED_CHARS]
        for forms in ([term.word for term in terms], [term.stem for term in terms]):
            close = process.extract(
                word, forms, scorer=OSA.distance, score_cutoff=errors, limit=_MAX_CORRECTION_TERMS
            )
            near += [(away, -terms[at].skills, terms[at].word, terms[at]) for _, away, at in close]
    return [min(near, key=lambda ranked: ranked[:3])[3]] if near else []


@lru_cache(maxsize=_CACHED_STEMS)
def _grams(stem: str) -> frozenset[str]:
    padded = f"^{stem}$"
    return frozenset(padded[at : at + _GRAM_CHARS] for at in range(max(1, len(padded) - _GRAM_CHARS + 1)))
