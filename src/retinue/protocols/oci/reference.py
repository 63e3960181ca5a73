"""Pure: names of things in an OCI registry (repositories, tags, digests) and the rules on them.

Grammar: OCI distribution spec 1.1, "Pulling manifests". A repository of ours is always a relative
path of harmless parts, so it may name a folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import total_ordering

import semver

from retinue.core.errors import InvalidReferenceError

MAX_REPOSITORY_CHARS = 255
MAX_REFERENCE_CHARS = 1024
DEFAULT_TAG = "v1"
"""The tag under which seed 001 publishes (P-03)."""

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REGISTRY = re.compile(
    r"(?:https?://)?(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
)
_VERSION = re.compile(r"[vV]?([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?(?:-([0-9A-Za-z.-]+))?")
_UNFIT = re.compile(r"[^a-z0-9]+")


def digest_of(data: bytes) -> str:
    """The digest under which a registry keeps these bytes: ``sha256:<64 hex>``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_repository(text: str) -> bool:
    return len(text) <= MAX_REPOSITORY_CHARS and _REPOSITORY.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def check_repository(text: str) -> str:
    """The text itself; raises InvalidReferenceError unless it is a repository name."""
    if not is_repository(text):
        raise InvalidReferenceError(
            text[:MAX_REPOSITORY_CHARS],
            "a repository is lower-case letters, digits and single . _ - between them, in parts divided by /",
        )
    return text


@dataclass(frozen=True, slots=True)
class Reference:
    """One artifact: repository with tag or digest, perhaps in a named registry.

    Without tag and digest the reader chooses the tag (``choose_tag``); with both the digest decides.
    ``registry`` is ``host[:port]``, with the scheme where one was written.
    """

    repository: str
    tag: str | None = None
    digest: str | None = None
    registry: str | None = None

    def __post_init__(self) -> None:
        check_repository(self.repository)
        if self.tag is not None and not is_tag(self.tag):
            raise InvalidReferenceError(self.tag, "a tag is up to 128 letters, digits, . _ and -")
        if self.digest is not None and not is_digest(self.digest):
            raise InvalidReferenceError(self.digest, "a digest is sha256: and 64 lower-case hex digits")
        if self.registry is not None and not _is_registry(self.registry):
            raise InvalidReferenceError(self.registry, "a registry is host:port or a host with a dot")

    @property
    def target(self) -> str | None:
        """What a manifest is asked for by: the digest, else the tag, else None."""
        return self.digest or self.tag

    def at(self, target: str) -> Reference:
        """The same repository at another tag or digest."""
        if ":" in target:
            return Reference(self.repository, digest=target, registry=self.registry)
        return Reference(self.repository, tag=target, registry=self.registry)

    def __str__(self) -> str:
        return render_reference(self)


def parse_reference(text: str) -> Reference:
    """Read ``[registry/]repository[:tag][@digest]``; nested repositories are kept whole (SPEC 2, doubt 10).

    The first part is a registry when it has a dot or a port, is ``localhost``, or a scheme stands before it.
    Raises InvalidReferenceError.
    """
    if len(text) > MAX_REFERENCE_CHARS:
        raise InvalidReferenceError(text[:80] + "…", f"longer than {MAX_REFERENCE_CHARS} characters")
    rest, at, digest = text.partition("@")
    scheme, scheme_mark, after = rest.partition("://")
    if scheme_mark:
        host, slash, rest = after.partition("/")
        registry: str | None = f"{scheme}://{host}"
    else:
        host, slash, after = rest.partition("/")
        registry, rest = (host, after) if slash and _looks_like_host(host) else (None, rest)
    repository, colon, tag = rest.partition(":")
    if not repository:
        raise InvalidReferenceError(text, "it names no repository")
    return Reference(
        repository,
        tag=tag if colon else None,
        digest=digest if at else None,
        registry=registry,
    )


def render_reference(reference: Reference) -> str:
    """The text that ``parse_reference`` reads back."""
    text = reference.repository
    if reference.registry is not None:
        text = f"{reference.registry}/{text}"
    if reference.tag is not None:
        text += f":{reference.tag}"
    if reference.digest is not None:
        text += f"@{reference.digest}"
    return text


def _looks_like_host(text: str) -> bool:
    return "." in text or ":" in text or text == "localhost"


def _is_registry(text: str) -> bool:
    return _REGISTRY.fullmatch(text) is not None and _looks_like_host(text)


def short_name(name: str) -> str:
    """A card's name less a trailing ``-agent``: ``plan-agent`` → ``plan`` (SPEC 7, seed 001)."""
    return name.removesuffix("-agent") or name


def card_repository(name: str) -> str:
    """The repository of a card of this name: ``agents/<short>``.

    A name outside the grammar of repositories is lowered and its other characters become ``-``.
    Raises InvalidReferenceError when nothing is left of it.
    """
    return f"agents/{_fit_part(short_name(name), name)}"


def workflow_repository(workflow_id: str) -> str:
    """The repository of a workflow: ``workflows/<id>`` (SPEC 2, formats)."""
    return f"workflows/{_fit_part(workflow_id, workflow_id)}"


def _fit_part(text: str, name: str) -> str:
    part = text if re.fullmatch(_PART, text) else _UNFIT.sub("-", text.lower()).strip("-")
    if not part:
        raise InvalidReferenceError(name, "no letter or digit is left for a repository; give --repository")
    return part


@total_ordering
@dataclass(frozen=True, slots=True)
class TagRank:
    """Where a tag stands among others: versions by semver, read leniently, above all other tags."""

    version: semver.Version | None

    def __lt__(self, other: TagRank) -> bool:
        if self.version is None or other.version is None:
            return self.version is None and other.version is not None
        return self.version.compare(other.version) < 0


def rank_tag(tag: str) -> TagRank:
    """Rank a tag: optional ``v``, one to three numbers, a pre-release below its release (SPEC 7)."""
    found = _VERSION.fullmatch(tag)
    if found is None:
        return TagRank(None)
    major, minor, patch = (int(number or 0) for number in found.groups()[:3])
    try:
        return TagRank(semver.Version(major, minor, patch, prerelease=found.group(4)))
    except ValueError:  # a pre-release that semver does not know, as "1.0-01"
        return TagRank(None)


def choose_tag(tags: Iterable[str], wanted: str | None = None) -> str | None:
    """The tag to read (SPEC 2, doubt 7): the wanted one → highest version → ``latest`` → the first.

    None when there is no tag, or the wanted one is not among them.
    """
    ordered = sorted(tags)
    if wanted is not None:
        return wanted if wanted in ordered else None
    if len(ordered) <= 1:
        return ordered[0] if ordered else None
    best = max(ordered, key=rank_tag)
    if rank_tag(best).version is not None:
        return best
    return "latest" if "latest" in ordered else ordered[0]
