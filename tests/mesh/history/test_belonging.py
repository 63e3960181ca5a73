"""To which search a call belongs, and what a later call of the same search changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.mesh.history.records import Hashes
from retinue.mesh.history.search_history import LISTED_FOR_S, NAMED_FOR_S
from tests.mesh.history.small_mesh import ANNA, ASKED, MESH, ROUTES, TRIPS, Mesh

IN_RUN = Principal(LOCAL.id, "run", MESH)


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


def note(mesh: Mesh, caller: Principal, text: str = ASKED, run: str | None = None) -> str:
    hits = [(mesh.entry(ROUTES), "plan_route"), (mesh.entry(TRIPS), "book_trip")]
    search = mesh.history.note_search(caller, text, hits, run=run)
    assert search is not None
    return search


def requests(mesh: Mesh) -> set[tuple[int, ...]]:
    return {record.stems for record in mesh.history.list_records()}


def hashed(text: str) -> tuple[int, ...]:
    return Hashes(b"k" * 64).of_request(text)


@pytest.mark.parametrize("caller", [LOCAL, ANONYMOUS])
def test_a_step_of_a_run_belongs_to_no_search_that_its_caller_made_at_a_door(
    mesh: Mesh, caller: Principal
) -> None:
    search = note(mesh, caller)
    as_run = Principal(caller.id, "run", MESH)
    mesh.end("routes", "plan_route", as_run, run_step="run-77/step2")
    mesh.history.expect("named", "plan_route", search)
    mesh.end_of("named", "routes", "plan_route", as_run, run_step="run-77/step3")
    assert mesh.verdicts() == []
    mesh.history.note_run(caller, "a journey to the sea", "run-78")
    mesh.end("routes", "plan_route", as_run, run_step="run-78/0")
    assert requests(mesh) == {hashed("a journey to the sea")}, "the prompt of its run"


def test_a_step_of_a_run_belongs_to_the_newest_search_of_its_own_run(mesh: Mesh) -> None:
    note(mesh, IN_RUN, "a train at noon", run="run-1")
    note(mesh, IN_RUN, "a train at night", run="run-2")
    note(mesh, LOCAL, "a journey to the sea")
    mesh.end("routes", "plan_route", IN_RUN, run_step="run-1/0")
    assert requests(mesh) == {hashed("a train at noon")}
    mesh.end("routes", "plan_route", IN_RUN, run_step="run-3/0")
    assert len(mesh.verdicts()) == 1


def test_a_call_at_a_door_belongs_to_no_search_of_a_run_unless_it_names_it(mesh: Mesh) -> None:
    search = note(mesh, IN_RUN, run="run-1")
    mesh.end("routes", "plan_route", LOCAL)
    assert mesh.verdicts() == []
    mesh.history.expect("named", "plan_route", search)
    mesh.end_of("named", "routes", "plan_route", LOCAL)
    assert mesh.verdicts() == [("plan_route", "done")]


def test_a_search_that_is_named_counts_for_an_hour_and_one_that_is_not_for_ten_minutes(mesh: Mesh) -> None:
    search = note(mesh, ANNA)
    mesh.now += NAMED_FOR_S - 1
    note(mesh, Principal("token:carl", "token", MESH))
    mesh.end("routes", "plan_route")
    assert mesh.verdicts() == []
    mesh.history.expect("soon", "plan_route", search)
    mesh.end_of("soon", "routes", "plan_route")
    assert mesh.verdicts() == [("plan_route", "done")]
    mesh.now += 2
    mesh.history.expect("late", "book_trip", search)
    mesh.end_of("late", "trips", "book_trip")
    assert mesh.verdicts() == [("plan_route", "done")]
    assert NAMED_FOR_S == 6 * LISTED_FOR_S == 3_600


@pytest.mark.parametrize("status", ["failed", "refused"])
def test_only_a_call_that_is_done_corrects_an_earlier_one(mesh: Mesh, status: str) -> None:
    mesh.find()
    mesh.end("routes", "plan_route")
    mesh.end("trips", "book_trip", status=status)
    assert dict(mesh.verdicts()) == {"plan_route": "done", "book_trip": status}
    mesh.end("trips", "book_trip")
    assert dict(mesh.verdicts()) == {"plan_route": "corrected", "book_trip": "done"}


@pytest.mark.parametrize(("is_good", "status"), [(True, "failed"), (False, "done"), (False, "refused")])
def test_what_a_person_said_stays_when_the_skill_is_called_again_in_the_same_search(
    mesh: Mesh, status: str, *, is_good: bool
) -> None:
    mesh.find()
    mesh.end("routes", "plan_route")
    mesh.history.rate(ANNA, "plan_route", is_good=is_good)
    mesh.end("routes", "plan_route", status=status)
    assert mesh.verdicts() == [("plan_route", "good" if is_good else "bad")]
    mesh.end("trips", "book_trip")
    assert dict(mesh.verdicts())["plan_route"] == ("good" if is_good else "bad")
    mesh.history.rate(ANNA, "plan_route", is_good=not is_good)
    assert dict(mesh.verdicts())["plan_route"] == ("bad" if is_good else "good"), "a person may think again"
