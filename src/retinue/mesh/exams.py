"""The entrance exam: what came of asking an agent its own examples.

Only skills that are read-only or idempotent are asked. A result belongs to one version of a card: an agent
with a new digest has not been examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from retinue.core.errors import SkillNotOfferedError
from retinue.core.record import LOCAL_SOURCE, AgentRecord, Candidate, Skill, is_visible
from retinue.core.trust import Trust
from retinue.mesh.schema.text_place import find_text_place

ExamPolicy = Literal["require", "warn", "off"]
ExamStatus = Literal["passed", "failed", "not_examined"]

C = TypeVar("C", bound=Candidate)

EXAMINED_TRUST = Trust.IMPORTED
"""Agents that are trusted less are not asked, because open networks let anybody list an agent."""

FAILED_AGAIN_S = 600.0
"""Seconds after which an agent that failed is examined again, because a failure may be a momentary one."""

MAX_PROBLEMS = 5
MAX_PROBLEM_CHARS = 200

_NOTHING_TO_ASK = "no skill that is read-only or idempotent has an example with arguments"


@dataclass(frozen=True, slots=True)
class ExamResult:
    """The result for one ``digest`` of a card; ``problems`` say what failed, or why nothing was asked.

    ``at`` is in seconds since 1970, ``asked`` the number of calls. With ``is_away`` the agent did not answer;
    such a result is not stored, and the agent is asked again soon.
    """

    status: ExamStatus
    problems: tuple[str, ...] = ()
    asked: int = 0
    at: float = 0.0
    digest: str = ""
    is_away: bool = False

    def to_json(self) -> dict[str, Any]:
        """The form in files and replies; ``problems`` only where there are some."""
        row = {"status": self.status, "asked": self.asked, "at": round(self.at), "digest": self.digest}
        return {**row, "problems": list(self.problems)} if self.problems else row

    @classmethod
    def from_json(cls, value: Any) -> ExamResult | None:
        """The result in this form; None for any other value."""
        if not isinstance(value, Mapping) or value.get("status") not in ("passed", "failed", "not_examined"):
            return None
        problems, asked, at = value.get("problems", []), value.get("asked"), value.get("at")
        if not isinstance(problems, list) or type(asked) is not int or not isinstance(at, int | float):
            return None
        return cls(value["status"], tuple(map(str, problems)), asked, at, str(value.get("digest", "")))

    def render(self, *, with_problems: bool) -> dict[str, Any]:
        """The form in replies of the hub: the result, and the rest only ``with_problems``."""
        row: dict[str, Any] = {"result": self.status}
        if with_problems and self.asked:
            row["calls"] = self.asked
        if with_problems and self.at:
            row["at"] = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        if with_problems and self.problems:
            row["problems"] = list(self.problems)
        return row

    def describe(self, *, with_problems: bool = True) -> str:
        """The result as the end of a sentence about the agent."""
        if self.status == "passed":
            return f"passed its exam ({self.asked} calls)"
        what = "failed its exam" if self.status == "failed" else "was not examined"
        return f"{what}: {'; '.join(self.problems)}" if with_problems and self.problems else what


NOT_EXAMINED = ExamResult("not_examined", ("its turn has not come yet",))
NOT_TRUSTED = ExamResult("not_examined", ("it is of a network in which anybody lists agents",))


@dataclass(frozen=True, slots=True)
class ExamQuestion:
    """One call of an exam: an example of the agent's card, with its ``expected`` result or None."""

    skill: str
    arguments: Mapping[str, Any]
    expected: Any = None


def list_questions(record: AgentRecord, scopes: frozenset[str], limit: int) -> list[ExamQuestion]:
    """At most ``limit`` questions of a card: one of each skill first, then further ones."""
    by_skill = [
        list(_questions_of(skill))
        for skill in record.skills
        if is_visible(skill.visibility, scopes)
        and skill.is_repeatable
        and not (skill.hints.destructive or skill.hints.runs_code)
    ]
    questions: list[ExamQuestion] = []
    for place in range(max(map(len, by_skill), default=0)):
        questions += [row[place] for row in by_skill if place < len(row)]
    return questions[:limit]


def _questions_of(skill: Skill) -> Iterator[ExamQuestion]:
    """The examples with arguments; of a read-only skill also those with a text, which its author did not
    write as a call.
    """
    for example in skill.examples:
        if example.arguments is not None:
            yield ExamQuestion(skill.id, example.arguments, example.result)
        elif (
            example.text
            and skill.hints.read_only
            and (place := find_text_place(skill.input_schema)) is not None
        ):
            yield ExamQuestion(skill.id, {place: example.text}, example.result)


def has_shape(value: Any, expected: Any) -> bool:
    """Whether a result has the shape of an example: the kinds of its values and the keys of its objects."""
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and has_shape(value[key], inner) for key, inner in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(value, list)
    if isinstance(expected, bool) or isinstance(value, bool):
        return type(value) is type(expected)
    if isinstance(expected, int | float):
        return isinstance(value, int | float)
    return expected is None or type(value) is type(expected)


def judge(asked: int, problems: Sequence[str], unasked: Sequence[str], digest: str, at: float) -> ExamResult:
    """The result of an exam; ``unasked`` are the reasons why calls were refused."""
    if problems:
        return ExamResult("failed", _cut(problems), asked, at, digest)
    if asked:
        return ExamResult("passed", (), asked, at, digest)
    return ExamResult("not_examined", _cut(unasked) or (_NOTHING_TO_ASK,), 0, at, digest)


def _cut(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:MAX_PROBLEM_CHARS] for text in dict.fromkeys(texts))[:MAX_PROBLEMS]


class ExamBook:
    """The results by agent, and what the policy makes of them."""

    def __init__(self) -> None:
        self.policy: ExamPolicy = "off"
        self._results: dict[str, ExamResult] = {}

    def load(self, rows: Mapping[str, Any]) -> None:
        """Take the stored results; rows of another form are ignored."""
        for name, row in rows.items():
            if (result := ExamResult.from_json(row)) is not None:
                self._results[name] = result

    def to_json(self) -> dict[str, Any]:
        """The results as they are stored."""
        return {name: result.to_json() for name, result in self._results.items() if not result.is_away}

    def put(self, agent: Candidate, result: ExamResult) -> None:
        """Keep the result of an agent; that it is away replaces no other result for the same card."""
        if result.is_away:
            earlier = self._results.get(_name(agent))
            if earlier is not None and earlier.digest == result.digest and not earlier.is_away:
                return
        self._results[_name(agent)] = result

    def keep_only(self, agents: Iterable[Candidate]) -> None:
        """Forget the results of agents that have gone."""
        names = {_name(agent) for agent in agents}
        self._results = {name: result for name, result in self._results.items() if name in names}

    def find(self, agent: Candidate) -> ExamResult | None:
        """The result for the card that the agent has now; None for an agent of this process.

        It is None for every agent while the policy is ``off``.
        """
        if self.policy == "off" or agent.source == LOCAL_SOURCE:
            return None
        if agent.trust > EXAMINED_TRUST:
            return NOT_TRUSTED
        result = self._results.get(_name(agent))
        return result if result is not None and result.digest == digest_of(agent) else NOT_EXAMINED

    def is_due(self, agent: Candidate, now: float, every_s: float) -> bool:
        """Whether an agent has to be examined (again)."""
        result = self.find(agent)
        if result is None or result is NOT_TRUSTED:
            return False
        if result is NOT_EXAMINED or result.is_away:
            return True
        wait_s = min(every_s, FAILED_AGAIN_S) if result.status == "failed" else every_s
        return now - result.at >= wait_s

    def may_choose(self, agent: Candidate) -> bool:
        """Whether a call that names no agent may go to this one.

        Language models of the own mesh have no exam; a foreign agent may only say that it is a model.
        """
        is_own_model = agent.labels.get("kind") == "model" and agent.trust is Trust.OWN_MESH
        if self.policy != "require" or is_own_model:
            return True
        result = self.find(agent)
        return result is None or result.status == "passed"

    def select(self, candidates: tuple[C, ...], skill_id: str) -> tuple[C, ...]:
        """The candidates that may be chosen; raises SkillNotOfferedError if none may."""
        chosen = tuple(candidate for candidate in candidates if self.may_choose(candidate))
        if chosen or not candidates:
            return chosen
        error = SkillNotOfferedError(skill_id)
        names = ", ".join(dict.fromkeys(candidate.name for candidate in candidates[:3]))
        error.remedy = f"no agent that offers it has passed its exam; name one of them: {names}"
        raise error

    def count(self, agents: Iterable[Candidate]) -> Mapping[ExamStatus, int]:
        """The number of agents by result."""
        results = (self.find(agent) for agent in agents)
        return Counter(result.status for result in results if result is not None)


def digest_of(agent: Candidate) -> str:
    """The version of a card to which a result belongs."""
    return agent.digest or agent.version or ""


def _name(agent: Candidate) -> str:
    return " ".join((agent.source, agent.key, agent.id.tag))
