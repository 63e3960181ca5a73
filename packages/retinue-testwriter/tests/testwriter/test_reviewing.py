from __future__ import annotations

from retinue_testwriter.notes import Narrowing
from retinue_testwriter.reviewing import render_feedback, render_review, review_run
from retinue_testwriter.running import Failure, TestResult, TestRun
from retinue_testwriter.subject import Untestable


def failed(name: str, *failures: Failure) -> TestResult:
    return TestResult(name, "failed", failures=failures)


def test_an_undocumented_exception_is_a_finding_and_accepted_next_time() -> None:
    run = TestRun((failed("test_f", Failure("KeyError", example="a=1", statement="result = f(a)")),))
    review = review_run(run, {}, [])
    assert review.narrowing == {"test_f": Narrowing(allow={"KeyError": "a=1"})}
    assert [(e.what, e.example) for e in review.counter_examples] == [
        ("raises KeyError, which it does not document", "a=1")
    ]


def test_a_broken_claim_is_a_finding_and_withdrawn() -> None:
    run = TestRun(
        (failed("test_f", Failure("AssertionError", example="a=1", statement="assert result > 0")),)
    )
    review = review_run(run, {}, [])
    assert review.narrowing == {"test_f": Narrowing(drop=("assert result > 0",))}
    assert review.counter_examples[0].what == "breaks `result > 0`"


def test_a_pinned_result_that_does_not_repeat_is_withdrawn_whatever_it_raised() -> None:
    statement = "with pytest.raises(ValueError):\n    f(1)"
    run = TestRun((failed("test_f_pinned", Failure("_pytest.outcomes.Failed", statement=statement)),))
    assert review_run(run, {}, []).narrowing == {"test_f_pinned": Narrowing(drop=("f(1)",))}


def test_a_slow_test_is_bounded_first_and_left_out_then() -> None:
    run = TestRun((TestResult("test_f", "slow"),))
    first = review_run(run, {}, []).narrowing
    assert first == {"test_f": Narrowing(examples=20)}
    assert review_run(run, first, []).narrowing["test_f"].leave_out


def test_a_killed_refused_or_flaky_test_is_left_out() -> None:
    run = TestRun(
        (
            TestResult("test_a", "killed", message="signal 9"),
            TestResult("test_b", "refused", message="writes files"),
            failed("test_c", Failure("hypothesis.errors.FlakyFailure")),
            failed("test_d", Failure("hypothesis.errors.Unsatisfiable")),
        )
    )
    review = review_run(run, {}, [])
    assert review.failed == 4
    assert all(change.leave_out for change in review.narrowing.values())
    assert review.counter_examples == ()


def test_findings_of_former_rounds_stay_in_the_review() -> None:
    earlier = {"test_f": Narrowing(allow={"KeyError": "a=1"})}
    review = review_run(TestRun((TestResult("test_f", "passed"),), 50.0), earlier, [Untestable("g", "why")])
    assert (review.passed, review.failed, review.narrowing) == (1, 0, {})
    text = render_review(review, "m")
    assert "KeyError" in text
    assert "g: why" in text
    assert text.startswith("Code quality score: 8/10")
    assert render_feedback(review).startswith("Nothing to narrow")


def test_a_file_that_could_not_be_run_fails_with_the_problem() -> None:
    review = review_run(TestRun((), problem="ImportError: x"), {}, [])
    assert (review.failed, review.score) == (1, 0)
    assert "ImportError: x" in render_review(review, "m")
    assert "ImportError: x" in render_feedback(review)


def test_the_feedback_names_every_change() -> None:
    run = TestRun(
        (
            failed("test_f", Failure("KeyError", statement="result = f()")),
            TestResult("test_g", "slow"),
            TestResult("test_h", "killed", message="signal 9"),
        )
    )
    feedback = render_feedback(review_run(run, {}, []))
    assert all(word in feedback for word in ("test_f", "KeyError", "test_g", "20 examples", "test_h"))
