"""The text index in ``retinue.db``, on SQLite FTS5.

Texts arrive as stems (`retinue.mesh.search.skill_texts`), so the tokenizer only splits at spaces. FTS5 is
used to find candidates. The cost of a query is the number of matching rows, about 1.5 µs each with
bm25(), so every stage of a search is limited in rows: stems that too many skills have are not looked
up while rarer stems find enough.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from sqlite3 import Connection, Cursor, Row
from typing import TypeVar, cast, get_args

import orjson

from retinue.core.errors import StorageFullError
from retinue.core.record import ListingKey, Visibility
from retinue.mesh.search.skill_texts import FIELD_WEIGHTS, FIELDS, TEXT_VERSION, ListingText, SkillText
from retinue.mesh.search.text_index import EXPANDED_WEIGHT, Corpus, Term, weigh_stems
from retinue.storage.database import Database

EXACT_ROWS = 1_000
"""If the stems are in at most this many skills together, all are looked up; otherwise the rarest."""

STAGE_ROWS = 500
ENOUGH = 10
"""When this many skills have all stems that were asked, skills that have some of them are skipped."""

ROWS_PER_LISTING = 60
"""In a search within a few listings, the rows that match are read if they are fewer than this for each one.

Otherwise the texts of the listings are read: those of five skills cost as much as these rows.
"""

MAX_STEMS = 96

MERGED_AT = 10
"""So many changes of the numbers of stems are merged at once, where no search needs them earlier.

Most stems of a text are in the texts before it, too, so to count them together costs a third.
"""

_VERSION = f"{TEXT_VERSION} counts"
"""Stored in the file; tables of another version are dropped, and the listings are indexed again."""

_NAME = next(iter(FIELDS))
_KINDS: tuple[Visibility, ...] = get_args(Visibility)
_VISIBILITY_BITS = 2
_VISIBILITY_MASK = 2**_VISIBILITY_BITS - 1
"""The last bits of a row id hold the visibility, so hidden rows are skipped as they match."""

_MAX_COUNTED = 100_000
"""Stems that are remembered as known, about 10 MB."""

_CHUNK = 500
_MAX_KNOWN = 10_000
"""Listings whose rows are remembered; 2 MB with five skills each."""

T = TypeVar("T")
_TABLES = f"""
    CREATE TABLE search_listings (
        id INTEGER PRIMARY KEY, source TEXT NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL,
        digest TEXT NOT NULL, UNIQUE (source, key, tag)
    );
    CREATE TABLE search_skills (
        id INTEGER PRIMARY KEY, listing INTEGER NOT NULL, skill TEXT NOT NULL, length REAL NOT NULL
    );
    CREATE INDEX search_skills_of ON search_skills (listing);
    CREATE TABLE search_terms (stem TEXT PRIMARY KEY, word TEXT NOT NULL, skills INTEGER NOT NULL)
        WITHOUT ROWID;
    CREATE TABLE search_counts (id INTEGER PRIMARY KEY, counts BLOB NOT NULL, words BLOB NOT NULL);
    CREATE VIRTUAL TABLE search_words USING fts5({", ".join(FIELDS)}, tokenize = 'ascii');
    CREATE TABLE search_form (form TEXT NOT NULL);
"""
_GATHER_BYTES = 8 * 2**20
"""How much FTS5 collects before it writes a segment, because fewer segments need fewer merges in a bulk load.
"""

_TABLE_NAMES = (
    "search_listings",
    "search_skills",
    "search_terms",
    "search_counts",
    "search_words",
    "search_form",
)

_BY_BM25 = (
    f"SELECT * FROM (SELECT rowid, bm25(search_words, {', '.join(map(str, FIELD_WEIGHTS))}) AS badness "  # noqa: S608
    f"FROM search_words(?) WHERE (rowid & {2**_VISIBILITY_BITS - 1}) IN (%s) LIMIT ?) "
    "ORDER BY badness, rowid LIMIT ?"
)
_BY_LENGTH = (
    "SELECT * FROM (SELECT s.id, s.length AS badness FROM search_words(?) w "  # noqa: S608
    "CROSS JOIN search_skills s ON s.id = w.rowid "
    f"WHERE (w.rowid & {2**_VISIBILITY_BITS - 1}) IN (%s) LIMIT ?) ORDER BY badness, id LIMIT ?"
)
"""For frequent stems, because bm25() reads the whole list of each stem again to count it, which takes too
long. Among rows that have the same stems, the shorter ones are better.
"""

_TEXTS = (
    f"SELECT s.id, l.source, l.key, l.tag, s.skill, {', '.join(f'w.{name}' for name in FIELDS)} "  # noqa: S608
    "FROM search_skills s JOIN search_listings l ON l.id = s.listing JOIN search_words w ON w.rowid = s.id "
)
_KEYS = (
    "SELECT s.id, l.source, l.key, l.tag FROM search_skills s "
    "JOIN search_listings l ON l.id = s.listing WHERE s.id IN"
)
_ROWS = (
    "SELECT s.id, l.source, l.key, l.tag FROM search_listings l JOIN search_skills s ON s.listing = l.id "
    "WHERE (l.source, l.key, l.tag) IN (VALUES"
)
_DIGESTS = f"SELECT id, source, key, tag, digest FROM search_listings WHERE id > ? ORDER BY id LIMIT {_CHUNK}"  # noqa: S608
_ADD_TERM = (
    "INSERT INTO search_terms (stem, word, skills) VALUES (?, ?, ?) "
    "ON CONFLICT (stem) DO UPDATE SET skills = skills + excluded.skills"
)


class SqliteTextIndex:
    """Implements ``retinue.mesh.search.text_index.TextIndex`` in the file ``path``.

    Raises StateDamagedError if the file is not a Retinue database, StateError if it cannot be opened,
    and StorageFullError if the disk is full. An index of another version is emptied.
    """

    def __init__(
        self,
        path: Path,
        *,
        exact_rows: int = EXACT_ROWS,
        stage_rows: int = STAGE_ROWS,
        rows_per_listing: int = ROWS_PER_LISTING,
    ) -> None:
        self._database = Database(path)
        self._rows_per_listing = rows_per_listing
        self._exact_rows = exact_rows
        self._stage_rows = stage_rows
        self._rows: dict[ListingKey, list[int]] = {}
        """The ids of the skills of listings within which was searched."""
        self._skills: int | None = None
        self._length = 0.0
        self._counted: set[str] = set()
        """Stems that certainly have a word in the table of terms, or in the changes of it."""
        self._changes = 0
        """Changes of the numbers of stems that are not in the table of terms."""
        try:
            with self._database.writing() as connection:
                connection.execute("BEGIN IMMEDIATE")
                _prepare(connection)
                self._changes = connection.execute("SELECT count(*) FROM search_counts").fetchone()[0]
        except BaseException:
            self._database.close()
            raise

    def put_all(self, texts: Sequence[ListingText]) -> None:
        if not texts:
            return
        last = {text.listing_id: text for text in texts}
        added: Counter[str] = Counter()
        try:
            with self._database.writing() as connection:
                connection.execute("BEGIN IMMEDIATE")
                removed = self._take_out(connection, last)
                next_id = _next_id(connection)
                rows: list[tuple[object, ...]] = []
                contents: list[tuple[object, ...]] = []
                for text in last.values():
                    listing = connection.execute(
                        "INSERT INTO search_listings (source, key, tag, digest) VALUES (?, ?, ?, ?)",
                        (*text.listing_id, text.digest),
                    ).lastrowid
                    for skill in text.skills:
                        skill_id = next_id << _VISIBILITY_BITS | _KINDS.index(skill.visibility)
                        next_id += 1
                        length = skill.length
                        rows.append((skill_id, listing, skill.skill_id, length))
                        contents.append((skill_id, *skill.fields))
                        added.update(skill.stems)
                        self._length += length
                self._skills = (self._skills or 0) + len(rows)
                connection.executemany("INSERT INTO search_skills VALUES (?, ?, ?, ?)", rows)
                connection.executemany(
                    f"INSERT INTO search_words (rowid, {', '.join(FIELDS)}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
                    contents,
                )
                words = self._find_words(last.values(), added)
                self._note_counts(connection, added, removed, words)
        except BaseException:
            self._forget()
            raise

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        try:
            for some in _chunks(listing_ids):
                with self._database.writing() as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    self._note_counts(connection, Counter(), self._take_out(connection, some), {})
        except BaseException:
            self._forget()
            raise

    def digests(self, listing_ids: Collection[ListingKey]) -> Mapping[ListingKey, str]:
        query = "SELECT digest FROM search_listings WHERE source = ? AND key = ? AND tag = ?"
        with self._database.reading() as connection:
            rows = [
                (listing_id, connection.execute(query, listing_id).fetchone()) for listing_id in listing_ids
            ]
        return {listing_id: row["digest"] for listing_id, row in rows if row is not None}

    def iterate_digests(self) -> Iterator[tuple[ListingKey, str]]:
        last = 0
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(_DIGESTS, (last,)).fetchall()
            if not rows:
                return
            last = rows[-1]["id"]
            for _, source, key, tag, digest in rows:
                yield ListingKey(source, key, tag), digest

    def corpus(self) -> Corpus:
        with self._database.reading() as connection:
            skills = self._count(connection)
        return Corpus(skills, self._length / skills) if skills else Corpus()

    def counts(self, stems: Collection[str]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        self._merge_counts()
        with self._database.reading() as connection:
            for some in _chunks(stems):
                query = f"SELECT stem, skills FROM search_terms WHERE stem IN ({_placeholders(some)})"  # noqa: S608
                counts.update((row["stem"], row["skills"]) for row in connection.execute(query, some))
        return counts

    def list_terms(self, prefix: str, *, limit: int) -> Sequence[Term]:
        self._merge_counts()
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT stem, word, skills FROM search_terms WHERE stem >= ? AND stem < ? "
                "ORDER BY skills DESC, stem LIMIT ?",
                (prefix, prefix + "\U0010ffff", limit),
            )
            return [Term(*row) for row in rows]

    def list_candidates(
        self,
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
        within: Container[ListingKey] | None = None,
    ) -> Sequence[SkillText]:
        counts = self.counts({*asked, *expanded})
        with self._database.reading() as connection:
            hits = _Hits(
                connection, visibilities, self._exact_rows, self._stage_rows, max(limit, ENOUGH), within
            )
            hits.search(counts.keys() & set(asked), counts)
            return _load_texts(connection, "s.id", hits.best()[:limit])

    def list_skills(
        self, listing_ids: Iterable[ListingKey], visibilities: Collection[str]
    ) -> Sequence[SkillText]:
        with self._database.reading() as connection:
            listings = [
                row["id"]
                for listing_id in listing_ids
                for row in connection.execute(
                    "SELECT id FROM search_listings WHERE source = ? AND key = ? AND tag = ?",
                    listing_id,
                )
            ]
            texts = _load_texts(connection, "s.listing", listings)
        return [text for text in texts if text.visibility in visibilities]

    def list_matching(
        self,
        listing_ids: Collection[ListingKey],
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
    ) -> Sequence[SkillText]:
        counts = self.counts({*asked, *expanded})
        weights = weigh_stems(counts, asked)
        if sum(counts.values()) > self._rows_per_listing * len(listing_ids):
            texts = self.list_skills(listing_ids, visibilities)
            shares = [(sum(weights.get(stem, 0.0) for stem in text.stems), text) for text in texts]
            best = heapq.nlargest(limit, shares, key=itemgetter(0))
            return [text for share, text in best if share]
        codes = {code for code, kind in enumerate(_KINDS) if kind in visibilities}
        shared: dict[int, float] = {}
        with self._database.reading() as connection:
            cursor = connection.cursor()
            cursor.row_factory = None
            own = self._list_rows(cursor, listing_ids)
            for stem, weight in weights.items():
                for (row,) in cursor.execute("SELECT rowid FROM search_words(?)", (_quote(stem),)):
                    if row in own:
                        shared[row] = shared.get(row, 0.0) + weight
            visible = (row for row in shared if row & _VISIBILITY_MASK in codes)
            texts = _load_texts(connection, "s.id", heapq.nlargest(limit, visible, key=shared.__getitem__))
        # a row that another process has written since would be one of a listing that is not within
        return [text for text in texts if text.listing_id in listing_ids]

    def close(self) -> None:
        self._database.close()

    def _forget(self) -> None:
        """Read what this index remembers from the file again, because a write has failed."""
        self._skills = None
        self._counted.clear()
        self._changes = 1

    def _find_words(self, texts: Iterable[ListingText], added: Collection[str]) -> dict[str, str]:
        """A word for each of the stems that may be new."""
        new = set(added).difference(self._counted)
        words: dict[str, str] = {}
        if new:
            for text in texts:
                words.update(text.find_words(new))
        return {stem: words.get(stem, stem) for stem in new}

    def _note_counts(
        self, connection: Connection, added: Counter[str], removed: Counter[str], words: Mapping[str, str]
    ) -> None:
        """Store how the numbers of the stems have changed, and merge these changes if there are many."""
        counts = dict(added)
        for stem, skills in removed.items():
            counts[stem] = counts.get(stem, 0) - skills
        counts = {stem: skills for stem, skills in counts.items() if skills}
        if not counts:
            return
        row = (orjson.dumps(counts), orjson.dumps(words))
        connection.execute("INSERT INTO search_counts (counts, words) VALUES (?, ?)", row)
        self._changes += 1
        self._counted.update(words)
        # without a row in the table a stem loses its word
        self._counted.difference_update(removed)
        if len(self._counted) > _MAX_COUNTED:
            self._counted.clear()
        if self._changes >= MERGED_AT:
            _merge(connection)
            self._changes = 0

    def _merge_counts(self) -> None:
        """Bring the table of terms up to date."""
        if not self._changes:
            return
        with suppress(StorageFullError), self._database.writing() as connection:
            # on a full disk the numbers of the last changes are missing, which counts little in a search
            connection.execute("BEGIN IMMEDIATE")
            _merge(connection)
            self._changes = 0

    def _list_rows(self, cursor: Cursor, listing_ids: Collection[ListingKey]) -> set[int]:
        """The ids of the skills of these listings."""
        known = self._rows
        for some in _chunks(listing_id for listing_id in listing_ids if listing_id not in known):
            places = ", ".join(["(?, ?, ?)"] * len(some))
            rows = cursor.execute(f"{_ROWS} {places})", [*itertools.chain.from_iterable(some)]).fetchall()
            known.update((listing_id, []) for listing_id in some)
            for row, *key in rows:
                known[ListingKey(*key)].append(row)
        own = set(itertools.chain.from_iterable(known.get(listing_id, ()) for listing_id in listing_ids))
        if len(known) > _MAX_KNOWN:
            known.clear()
        return own

    def _count(self, connection: Connection) -> int:
        """The number of skills; counted once, then kept up to date by the writes of this index."""
        if self._skills is None:
            row = connection.execute("SELECT count(*), total(length) FROM search_skills").fetchone()
            self._skills, self._length = row
        return cast(int, self._skills)

    def _take_out(self, connection: Connection, listing_ids: Iterable[ListingKey]) -> Counter[str]:
        """Delete the texts of the listings; returns how many of their skills had each stem."""
        removed: Counter[str] = Counter()
        self._count(connection)
        for listing_id in listing_ids:
            self._rows.pop(listing_id, None)
            row = connection.execute(
                "DELETE FROM search_listings WHERE source = ? AND key = ? AND tag = ? RETURNING id",
                listing_id,
            ).fetchone()
            if row is None:
                continue
            held = connection.execute(
                "SELECT s.length, w.* FROM search_skills s JOIN search_words w ON w.rowid = s.id "
                "WHERE s.listing = ?",
                (row["id"],),
            ).fetchall()
            for length, *fields in held:
                self._length -= length
                removed.update(set(" ".join(fields).split()))
            self._skills = cast(int, self._skills) - len(held)
            connection.execute(
                "DELETE FROM search_words WHERE rowid IN (SELECT id FROM search_skills WHERE listing = ?)",
                (row["id"],),
            )
            connection.execute("DELETE FROM search_skills WHERE listing = ?", (row["id"],))
        return removed


class _Hits:
    """The rows of one search, collected stage by stage until there are enough."""

    def __init__(
        self,
        connection: Connection,
        visibilities: Collection[str],
        exact_rows: int,
        stage_rows: int,
        limit: int,
        within: Container[ListingKey] | None = None,
    ) -> None:
        self._connection = connection
        self._within = within
        self._exact_rows = exact_rows
        self._stage_rows = stage_rows
        self._limit = limit
        codes = [str(code) for code, kind in enumerate(_KINDS) if kind in visibilities]
        self._by_bm25 = _BY_BM25 % ", ".join(codes)
        self._by_length = _BY_LENGTH % ", ".join(codes)
        self._found: dict[int, tuple[int, float]] = {}
        self._stage = 0

    def best(self) -> list[int]:
        """The rows of the strictest stages, the most promising first."""
        return heapq.nsmallest(self._limit, self._found, key=self._found.__getitem__)

    def search(self, asked: Collection[str], counts: Mapping[str, int]) -> None:
        """Look up the stems of ``counts``; terms that are not ``asked`` weigh less."""
        cost = {stem: rows / (1.0 if stem in asked else EXPANDED_WEIGHT) for stem, rows in counts.items()}
        stems = sorted(cost, key=lambda stem: (cost[stem], stem))[:MAX_STEMS]
        if sum(counts[stem] for stem in stems) <= self._exact_rows:
            self._collect(self._by_bm25, _any(stems), self._exact_rows)
            return
        if asked:
            self._collect(self._by_length, f"{_NAME} : ({_all(asked)})", self._stage_rows)
            self._collect(self._by_length, _all(asked), self._stage_rows)
        running = itertools.accumulate(counts[stem] for stem in stems)
        rare = [stem for stem, rows in zip(stems, running, strict=True) if rows <= self._exact_rows]
        self._collect(self._by_bm25, _any(rare), self._exact_rows)
        common = sorted(set(asked).difference(rare), key=lambda stem: (counts[stem], stem))
        for pair in itertools.combinations(common[:3], 2):
            self._collect(self._by_length, _all(pair), self._stage_rows)
        for stem in [stem for stem in stems if stem not in rare][:3]:
            self._collect(self._by_length, _quote(stem), self._stage_rows)

    def _collect(self, query: str, expression: str, rows: int) -> None:
        """Add the matching rows, unless there are enough already."""
        if expression and len(self._found) < ENOUGH:
            self._stage += 1
            limit = self._limit if self._within is None else rows
            hits = self._connection.execute(query, (expression, rows, limit)).fetchall()
            seen = None if self._within is None else self._keep_within([row[0] for row in hits])
            for rowid, badness in hits:
                if seen is None or rowid in seen:
                    self._found.setdefault(rowid, (self._stage, badness))

    def _keep_within(self, ids: Sequence[int]) -> set[int]:
        """The rows of these whose listing is within the search."""
        assert self._within is not None
        return {
            skill_id
            for some in _chunks(ids)
            for skill_id, *key in self._connection.execute(f"{_KEYS} ({_placeholders(some)})", some)
            if ListingKey(*key) in self._within
        }


def _prepare(connection: Connection) -> None:
    """Create the tables; tables of another version are dropped, since the listings can be indexed again."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "search_form" in tables:
        versions = [row[0] for row in connection.execute("SELECT form FROM search_form")]
        if versions == [_VERSION] and tables.issuperset(_TABLE_NAMES):
            return
    for table in _TABLE_NAMES:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO search_words (search_words, rank) VALUES ('hashsize', ?)", (_GATHER_BYTES,)
    )
    connection.execute("INSERT INTO search_form VALUES (?)", (_VERSION,))


def _merge(connection: Connection) -> None:
    """Add the stored changes to the numbers of the stems."""
    counts: dict[str, int] = {}
    words: dict[str, str] = {}
    rows = connection.execute("SELECT counts, words FROM search_counts ORDER BY id").fetchall()
    for row in rows:
        for stem, skills in orjson.loads(row["counts"]).items():
            counts[stem] = counts.get(stem, 0) + skills
        words = orjson.loads(row["words"]) | words
    changed = [(stem, words.get(stem, stem), counts[stem]) for stem in sorted(counts) if counts[stem]]
    connection.executemany(_ADD_TERM, changed)
    fewer = [(stem,) for stem, _, skills in changed if skills < 0]
    connection.executemany("DELETE FROM search_terms WHERE stem = ? AND skills <= 0", fewer)
    connection.execute("DELETE FROM search_counts")


def _next_id(connection: Connection) -> int:
    highest = connection.execute("SELECT max(id) FROM search_skills").fetchone()[0]
    return ((highest or 0) >> _VISIBILITY_BITS) + 1


def _load_texts(connection: Connection, column: str, ids: Sequence[int]) -> list[SkillText]:
    return [
        _parse_row(row)
        for some in _chunks(ids)
        for row in connection.execute(f"{_TEXTS} WHERE {column} IN ({_placeholders(some)})", some)
    ]


def _parse_row(row: Row) -> SkillText:
    skill_id, source, key, tag, skill, *fields = row
    visibility = _KINDS[skill_id & (2**_VISIBILITY_BITS - 1)]
    return SkillText(ListingKey(source, key, tag), skill, visibility, tuple(fields))


def _any(stems: Iterable[str]) -> str:
    return " OR ".join(map(_quote, stems))


def _all(stems: Iterable[str]) -> str:
    return " AND ".join(map(_quote, stems))


def _quote(stem: str) -> str:
    """A stem as an FTS5 string; unquoted, it could be read as query syntax."""
    return '"' + stem.replace('"', '""') + '"'


def _placeholders(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _chunks(values: Iterable[T]) -> Iterator[list[T]]:
    waiting = iter(values)
    while some := list(itertools.islice(waiting, _CHUNK)):
        yield some
