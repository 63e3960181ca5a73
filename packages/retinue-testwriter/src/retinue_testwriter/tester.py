"""test-agent: runs a test file under limits and reviews the results."""

from __future__ import annotations

import ast
from typing import Annotated, Any

from pydantic import BaseModel, Field

from retinue import Agent, Context
from retinue.core.errors import ExecutionFailedError
from retinue_testwriter.drafting import make_file_name
from retinue_testwriter.notes import parse_code_notes, parse_narrowing, render_narrowing
from retinue_testwriter.reviewing import render_feedback, render_review, review_run
from retinue_testwriter.running import ModuleLocation, TestRun, run_tests
from retinue_testwriter.subject import Untestable


class CodeReview(BaseModel):
    """The review of a test file; ``narrowing`` holds the changes for the build agent, by test."""

    review: str
    feedback: str
    passed: int
    failed: int
    untestable: list[dict[str, str]]
    counter_examples: list[dict[str, str]]
    coverage: float | None
    score: int
    narrowing: dict[str, Any]
    code: str


agent = Agent(
    "test-agent",
    version="1.0.0",
    description="Runs Python tests under limits on time, memory, processes and files, and reviews them: "
    "passed, failed, untestable and why, counter-examples, coverage.",
    topics=["Review", "Python", "Testing"],
    scores={"planning": 0.1, "execution": 0.1, "review": 0.7},
    languages=["Python"],
)


@agent.skill(
    tags=["review", "python", "testing"],
    examples=["def test_addition(): assert 1 + 1 == 2"],
    expose=True,
    roles=["review"],
    runs_code=True,
    timeout_s=240,
)
async def review_code(
    code: Annotated[str, Field(description="A pytest file; a comment in it may say what it tests")],
    ctx: Context,
    python: Annotated[
        str, Field(description="The interpreter to run it with; default: the one it names")
    ] = "",
) -> CodeReview:
    """Reviews code by running it: property-based tests of a Python module, or any other pytest file."""
    check_runnable(code)
    notes = parse_code_notes(code)
    place = ModuleLocation.from_notes(notes | ({"runner": python} if python else {}))
    await ctx.progress(0.1, "running the tests")
    run = await run_tests(code, make_file_name(place.module or "code"), place)
    if not run.results and not run.problem:
        raise ExecutionFailedError("the code has no tests: functions named test_… that pytest finds")
    await ctx.progress(0.9, f"{len(run.results)} tests ran")
    return describe_run(run, notes, code)


def check_runnable(code: str) -> None:
    """Raises ExecutionFailedError for a text that is not Python or has no tests."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ExecutionFailedError(
            f"the code is no Python{line}: {error.args[0] if error.args else error}"
        ) from error
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not any(name.startswith("test") for name in names):
        raise ExecutionFailedError("the code has no tests: functions named test_… that pytest finds")


def describe_run(run: TestRun, notes: dict[str, Any], code: str) -> CodeReview:
    """The result of ``review_code`` for a finished run."""
    listed = notes.get("untestable")
    untestable = [
        Untestable(str(entry.get("name")), str(entry.get("why")))
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict)
    ]
    review = review_run(run, parse_narrowing(notes.get("narrowing")), untestable)
    return CodeReview(
        review=render_review(review, str(notes.get("module") or "the code")),
        feedback=render_feedback(review),
        passed=review.passed,
        failed=review.failed,
        untestable=[entry.as_json() for entry in review.untestable],
        counter_examples=[entry.as_json() for entry in review.counter_examples],
        coverage=None if review.coverage_percent is None else round(review.coverage_percent, 1),
        score=review.score,
        narrowing=render_narrowing(review.narrowing),
        code=code,
    )
