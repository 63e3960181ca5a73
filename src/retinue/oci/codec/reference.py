"""Repositories, tags, digests and references of OCI registries: parsing, rendering, choice of a tag.

A valid repository is a relative path without dotted parts, so it is safe as a folder name (OCI distribution
spec 1.1, "Pulling manifests").
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

MAX_VERSIONS = 8
"""Tags of one repository that are read as versions of its agent, the newest ones."""

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BESIDE = re.compile(r"sha256-[0-9a-f]{64}(?:\.[a-z]+)?")
_REGISTRY = re.compile(
    r"(?:https?://)?(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
)
_VERSION = re.compile(r"[vV]?([0-9]{1,18})(?:\.([0-9]{1,18}))?(?:\.([0-9]{1,18}))?(?:-([0-9A-Za-z.-]+))?")
_UNFIT = re.compile(r"[^a-z0-9]+")


def digest_of(data: bytes) -> str:
    """The digest of some bytes: ``sha256:<64 hex>``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def is_repository(text: str) -> bool:
    """Whether the text is a valid repository name."""
    return len(text) <= MAX_REPOSITORY_CHARS and _REPOSITORY.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Whether the text is a valid tag."""
    return _TAG.fullmatch(text) is not None


def referrers_tag(digest: str) -> str:
    """The tag under which registries without the referrers API keep the referrers of a digest."""
    return digest.replace(":", "-", 1)


def subject_of_tag(tag: str) -> str | None:
    """The digest whose referrers a tag holds, the inverse of `referrers_tag`; None for any other tag."""
    digest = tag.replace("-", ":", 1)
    return digest if is_digest(digest) else None


def is_referrers_tag(tag: str) -> bool:
    """Whether a tag holds the referrers of a digest, or a signature beside it, and no artifact."""
    return _BESIDE.fullmatch(tag) is not None


def is_digest(text: str) -> bool:
    """Whether the text is a valid SHA-256 digest."""
    return _DIGEST.fullmatch(text) is not None


def check_repository(text: str) -> str:
    """Return the text. Raises InvalidReferenceError unless it is a valid repository name."""
    if not is_repository(text):
        raise InvalidReferenceError(
            text[:MAX_REPOSITORY_CHARS],
            "a repository consists of lower-case letters and digits, separated by single . _ - or /",
        )
    return text


@dataclass(frozen=True, slots=True)
class Reference:
    """One artifact: a repository with tag or digest, optionally in a named registry.

    Without tag and digest, the reader chooses a tag (`choose_tag`); with both, the digest wins.
    ``registry`` is ``host[:port]``, with a scheme if one was given.
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
        """The digest, else the tag, else None."""
        return self.digest or self.tag

    def at(self, target: str) -> Reference:
        """The same repository at another tag or digest."""
        if ":" in target:
            return Reference(self.repository, digest=target, registry=self.registry)
        return Reference(self.repository, tag=target, registry=self.registry)

    def __str__(self) -> str:
        return render_reference(self)


def parse_reference(text: str) -> Reference:
    """Parse ``[registry/]repository[:tag][@digest]``; repositories may be nested (specification 2, doubt 10).

    The first part is a registry when it has a dot or a port, is ``localhost``, or follows a scheme.
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
        raise InvalidReferenceError(text, "it has no repository")
    return Reference(
        repository,
        tag=tag if colon else None,
        digest=digest if at else None,
        registry=registry,
    )


def render_reference(reference: Reference) -> str:
    """Render a reference, the inverse of `parse_reference`."""
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
    """A card name without a trailing ``-agent``: ``plan-agent`` → ``plan`` (specification 7.2)."""
    return name.removesuffix("-agent") or name


def card_repository(name: str, folder: str = "") -> str:
    """The repository for a card name: ``agents/<short>``, or ``agents/<folder>/<short>``.

    A name that is not a valid repository part is lower-cased and other characters become ``-``.
    Raises InvalidReferenceError when no character is left.
    """
    short = _fit_part(short_name(name), name)
    return f"agents/{folder}/{short}" if folder else f"agents/{short}"


def workflow_repository(workflow_id: str) -> str:
    """The repository for a workflow: ``workflows/<id>`` (specification 2.1)."""
    return f"workflows/{_fit_part(workflow_id, workflow_id)}"


def prompt_repository(name: str) -> str:
    """The repository for the file of an agent in Markdown: ``prompts/<short>``, beside ``agents/<short>``."""
    return f"prompts/{_fit_part(short_name(name), name)}"


def policy_repository(name: str) -> str:
    """The repository for a file of policies: ``policies/<name>``."""
    return f"policies/{_fit_part(name, name)}"


def _fit_part(text: str, name: str) -> str:
    part = text if re.fullmatch(_PART, text) else _UNFIT.sub("-", text.lower()).strip("-")
    if not part:
        raise InvalidReferenceError(
            name, "it has no letter or digit for a repository name; give --repository"
        )
    return part


@total_ordering
@dataclass(frozen=True, slots=True)
class TagRank:
    """Sort key of tags: versions in semver order, parsed leniently, above all other tags."""

    version: semver.Version | None

    def __lt__(self, other: TagRank) -> bool:
        if self.version is None or other.version is None:
            return self.version is None and other.version is not None
        return self.version.compare(other.version) < 0


def rank_tag(tag: str) -> TagRank:
    """Rank a tag: optional ``v``, one to three numbers, pre-releases before releases (specification 7.2)."""
    match = _VERSION.fullmatch(tag)
    if match is None:
        return TagRank(None)
    major, minor, patch = (int(number or 0) for number in match.groups()[:3])
    try:
        return TagRank(semver.Version(major, minor, patch, prerelease=match.group(4)))
    except ValueError:  # an invalid pre-release such as "1.0-01"
        return TagRank(None)


def default_tag(version: str | None) -> str:
    """The tag under which an agent of this version is published: ``v`` and the major version.

    ``v1`` for 0.x as well, and for a text that is no version.
    """
    rank = rank_tag(version or "").version
    return DEFAULT_TAG if rank is None else f"v{max(1, rank.major)}"


def choose_version_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags that are versions, newest first, at most `MAX_VERSIONS`; else the tag of `choose_tag`."""
    held = sorted(tag for tag in tags if not is_referrers_tag(tag))
    if len(held) < 2:
        return tuple(held)
    versions = [tag for tag in held if rank_tag(tag).version is not None]
    if not versions:
        best = choose_tag(held)
        return () if best is None else (best,)
    return tuple(sorted(versions, key=rank_tag, reverse=True)[:MAX_VERSIONS])


def choose_tag(tags: Iterable[str], requested: str | None = None) -> str | None:
    """Choose the tag to read: ``requested``, else the highest version, else ``latest``, else the first
    (specification 2, doubt 7).

    None when there is no tag of an artifact, or ``requested`` is not among them.
    """
    held = sorted(tags)
    if requested is not None:
        return requested if requested in held else None
    ordered = [tag for tag in held if not is_referrers_tag(tag)]
    if len(ordered) <= 1:
        return ordered[0] if ordered else None
    best = max(ordered, key=rank_tag)
    if rank_tag(best).version is not None:
        return best
    return "latest" if "latest" in ordered else ordered[0]
