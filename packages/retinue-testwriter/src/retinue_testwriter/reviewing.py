"""Turns the results of a test run into a review and into changes for the next round."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retinue_testwriter.notes import Narrowing
from retinue_testwriter.running import Failure, TestResult, TestRun
from retinue_testwriter.subject import Untestable

FEWER_EXAMPLES = 20
PINNED_SUFFIX = "_pinned"
_NEVER_DOCUMENTED = ("hypothesis.errors.", "_pytest.")


@dataclass(frozen=True, slots=True)
class CounterExample:
    """Undocumented behaviour of the module, with the test and the call that found it."""

    test: str
    what: str
    example: str

    def as_json(self) -> dict[str, str]:
        return {"test": self.test, "what": self.what, "example": self.example}


@dataclass(frozen=True, slots=True)
class Review:
    """A review; ``score`` is 0 … 10, ``coverage_percent`` None if it was not measured."""

    passed: int
    failed: int
    untestable: tuple[Untestable, ...]
    counter_examples: tuple[CounterExample, ...]
    coverage_percent: float | None
    narrowing: Mapping[str, Narrowing] = field(default_factory=dict)
    problem: str = ""
    failures: tuple[str, ...] = ()

    @property
    def score(self) -> int:
        """60 % for passing tests, 40 % for coverage."""
        run = self.passed + self.failed
        if not run or self.problem:
            return 0
        reached = self.coverage_percent if self.coverage_percent is not None else 100.0
        return round(10 * (0.6 * self.passed / run + 0.4 * reached / 100))


def review_run(run: TestRun, earlier: Mapping[str, Narrowing], untestable: Sequence[Untestable]) -> Review:
    """Review a run; findings of ``earlier`` narrowings stay in the review."""
    if run.problem:
        return Review(0, 1, tuple(untestable), (), None, problem=run.problem)
    narrowing: dict[str, Narrowing] = {}
    changes = [
        CounterExample(test, f"raises {exception}, which it does not document", call)
        for test, entry in earlier.items()
        for exception, call in entry.allow.items()
    ]
    failures: list[str] = []
    for result in run.results:
        if result.outcome in ("passed", "skipped"):
            continue
        change, examples = _judge(result, earlier.get(result.name, Narrowing()))
        narrowing[result.name] = change
        changes += examples
        failures.append(f"{result.name}: {_describe(result)}")
    passed = sum(result.outcome == "passed" for result in run.results)
    return Review(
        passed=passed,
        failed=len(failures),
        untestable=tuple(untestable),
        counter_examples=tuple(dict.fromkeys(changes)),
        coverage_percent=run.coverage_percent,
        narrowing=narrowing,
        failures=tuple(failures),
    )


def _judge(result: TestResult, before: Narrowing) -> tuple[Narrowing, list[CounterExample]]:
    """The change to a test that did not pass, and its finding about the module."""
    if result.outcome == "slow" and not before.examples:
        return Narrowing(examples=FEWER_EXAMPLES), []
    if result.outcome == "slow":
        return Narrowing(leave_out="too slow, also with few examples"), []
    if result.outcome == "killed":
        return Narrowing(leave_out=f"its test did not come back: {result.message}"), []
    if result.outcome == "refused":
        return Narrowing(leave_out=f"it {result.message} when called with generated arguments"), []
    change = Narrowing()
    examples: list[CounterExample] = []
    for failure in result.failures:
        narrower, what = _judge_failure(failure, pinned=result.name.endswith(PINNED_SUFFIX))
        change = change.merge(narrower)
        if what:
            examples.append(CounterExample(result.name, what, failure.example or failure.statement))
    return change, examples


def _judge_failure(failure: Failure, *, pinned: bool) -> tuple[Narrowing, str]:
    if failure.exception.startswith("hypothesis.errors.Flaky"):
        return Narrowing(leave_out="it does not do the same each time"), ""
    if failure.exception.startswith(_NEVER_DOCUMENTED) and "outcomes.Failed" not in failure.exception:
        return Narrowing(leave_out=f"no inputs could be made: {failure.exception.rpartition('.')[2]}"), ""
    statement = _find_claim(failure.statement)
    if pinned:
        return Narrowing(drop=(statement,)), f"does not repeat `{statement.removeprefix('assert ')}`"
    if failure.exception == "AssertionError" or "outcomes.Failed" in failure.exception:
        return Narrowing(drop=(statement,)), f"breaks `{statement.removeprefix('assert ')}`"
    if statement.startswith("assert"):
        what = f"breaks `{statement.removeprefix('assert ')}` with {failure.exception}"
        return Narrowing(drop=(statement,)), what
    example = failure.example or failure.statement
    return Narrowing(
        allow={failure.exception: example}
    ), f"raises {failure.exception}, which it does not document"


def _find_claim(statement: str) -> str:
    """The failed assertion; for a ``with pytest.raises`` block the call in it."""
    try:
        node = ast.parse(statement).body[0]
    except (SyntaxError, IndexError):
        return statement
    return ast.unparse(node.body[0]) if isinstance(node, ast.With) else statement


def _describe(result: TestResult) -> str:
    if result.outcome != "failed":
        return f"{result.outcome}{': ' + result.message if result.message else ''}"
    return "; ".join(
        f"{failure.exception} at `{_first_line(failure.statement)}`"
        + (f" for {' '.join(failure.example.split())}" if failure.example else "")
        for failure in result.failures
    )


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def render_review(review: Review, subject: str) -> str:
    """The review as text for people."""
    if review.problem:
        return f"Code quality score: 0/10\nThe tests could not be run: {review.problem}"
    lines = [f"Code quality score: {review.score}/10"]
    run = review.passed + review.failed
    covered = ""
    if review.coverage_percent is not None:
        covered = f"; they run {review.coverage_percent:.0f} % of the statements in its functions"
    lines.append(f"{review.passed} of {run} tests of {subject} pass{covered}.")
    if review.failures:
        lines += ["", "Failed:", *(f"- {text}" for text in review.failures)]
    if review.counter_examples:
        lines += ["", f"Findings about {subject}:"]
        lines += [f"- {e.test}: {e.what}: {' '.join(e.example.split())}" for e in review.counter_examples]
    if review.untestable:
        lines += ["", "Not tested:", *(f"- {entry.name}: {entry.why}" for entry in review.untestable)]
    return "\n".join(lines)


def render_feedback(review: Review) -> str:
    """The instructions for the next round, as text."""
    if review.problem:
        return f"Mend the test file: {review.problem}"
    if not review.narrowing:
        return "Nothing to narrow: every test passes." if review.passed else "There are no tests to run."
    lines = []
    for test, change in review.narrowing.items():
        for exception, example in change.allow.items():
            lines.append(
                f"- {test}: accept {exception} and name it as a finding ({' '.join(example.split())})"
            )
        lines += [f"- {test}: withdraw `{line}`, it does not always hold" for line in change.drop]
        if change.examples:
            lines.append(f"- {test}: too slow, try {change.examples} examples")
        if change.leave_out:
            lines.append(f"- {test}: leave it out: {change.leave_out}")
    return "\n".join(["Narrow these tests:", *lines])
