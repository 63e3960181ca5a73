"""The decorator ``@workflow``: schemas, names, schedules and digests of workflows in Python."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from retinue import InvalidSettingError, Run, workflow
from retinue.flows.body import HostedWorkflows
from retinue.flows.modules import add_files, load_hosted, load_workflows
from retinue.plugins import Plugin
from retinue.workflows.definitions.run_forms import CodeRun, WholeRun, parse_form, render_form
from retinue.workflows.runs.hosting import HostedWorkflow, RunCode, explain_missing


@dataclass
class Review:
    ok: bool
    notes: list[str]


@workflow(schedule="0 2 * * *", timezone="Europe/Berlin", input={"modules": ["textwrap"]})
async def nightly(run: Run, modules: list[str], strict: bool = False) -> dict[str, Review]:
    """Writes tests for modules."""
    return {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timezone": "Europe/Berlin"}, "timezone: it belongs to a schedule"),
        ({"input": {"a": 1}}, "input: it belongs to a schedule"),
        ({"schedule": "0 2 * * *", "timezone": "Mars/Phobos"}, "timezone: 'Mars/Phobos' is no time zone"),
        ({"continues": "sha256:" + "0" * 64}, "continues: it is a str"),
        ({"continues": ("sha256:abc",)}, "continues: 'sha256:abc' is no digest"),
    ],
)
def test_an_option_of_the_decorator_that_would_do_nothing_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSettingError, match=message) as refused:

        @workflow(**options)
        async def flow(run: Run) -> None:
            """Does nothing."""

    assert refused.value.remedy


def test_types_give_the_schemas_of_input_and_output() -> None:
    definition = nightly.definition
    assert definition.name == "nightly"
    assert definition.description == "Writes tests for modules."
    assert definition.input is not None
    assert definition.input["required"] == ["modules"]
    assert definition.input["properties"]["modules"] == {"type": "array", "items": {"type": "string"}}
    assert "run" not in definition.input["properties"]
    assert definition.output_schema is not None
    assert definition.output_schema["additionalProperties"] == {"$ref": "#/$defs/Review"}


def test_the_schedule_of_the_decorator_is_that_of_the_definition() -> None:
    schedule = nightly.definition.schedule
    assert schedule is not None
    assert (schedule.cron, schedule.timezone) == ("0 2 * * *", "Europe/Berlin")
    assert schedule.input == {"modules": ["textwrap"]}
    with pytest.raises(InvalidSettingError, match="schedule"):
        workflow(schedule="0 2 * *")


def test_a_run_stores_which_code_executes_it() -> None:
    stored = render_form(WholeRun.of(nightly.definition, {}))
    form = parse_form(stored)
    assert isinstance(form, CodeRun)
    assert form.code == nightly.definition.code
    assert form.code.file == "test_workflow.py"
    assert form.code.function == "nightly"
    assert form.code.digest.startswith("sha256:")


async def _plain(run: Run) -> None: ...


def _refused(make: Any, problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        make()


def test_a_function_that_is_no_workflow_is_refused_with_the_remedy() -> None:
    def plain(run: Run) -> None: ...

    async def without_run(modules: list[str]) -> None: ...

    async def odd(run: Run, path: Path, other: HostedWorkflows) -> None: ...

    _refused(lambda: workflow(plain), "no async function")  # type: ignore[arg-type]
    _refused(lambda: workflow(without_run), "no parameter has the type Run")
    _refused(lambda: workflow(odd), "^workflow odd: parameter other has the type HostedWorkflows")
    _refused(lambda: workflow(name="no/name")(_plain), "^workflow no/name: name: ")


FLOW = '''
from retinue import Run, workflow

@workflow
async def hello(run: Run, who: str) -> str:
    """Greets."""
    return await run.call("greet", who=who)
'''


def test_comments_and_layout_keep_the_digest_and_code_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "digests.py"

    def digest(text: str) -> str:
        file.write_text(text)
        (loaded,) = load_workflows(str(file))
        return loaded.definition.code.digest

    first = digest(FLOW)
    assert digest(f"# a comment\n{FLOW}\n\n") == first
    assert digest(FLOW.replace('"greet"', '"welcome"')) != first


def test_runs_of_earlier_code_are_found_where_the_new_code_continues_them(tmp_path: Path) -> None:
    file = tmp_path / "continued.py"
    file.write_text(FLOW)
    (old,) = load_workflows(str(file))
    changed = FLOW.replace('"greet"', '"welcome"')
    file.write_text(changed)
    hosted = HostedWorkflows(load_workflows(str(file)))
    needed = RunCode.find(old.definition.to_json())
    assert needed is not None
    assert hosted.find(needed) is None
    missing = explain_missing(needed, hosted.list_hosted())
    assert missing is not None
    assert missing.startswith("continued.py:hello (sha256:")
    assert "no running worker has this code; running workers have sha256:" in missing
    assert missing.endswith("retinue worker continued.py")
    file.write_text(changed.replace("@workflow", f'@workflow(continues=("{old.definition.code.digest}",))'))
    hosted = HostedWorkflows(load_workflows(str(file)))
    assert hosted.find(needed) is not None
    announced = [
        HostedWorkflow.from_json(orjson.loads(orjson.dumps(one.to_json()))) for one in hosted.list_hosted()
    ]
    assert announced == list(hosted.list_hosted())
    assert explain_missing(needed, announced) is None
    assert hosted.find(replace(needed, function="other")) is None


def test_a_file_of_the_settings_that_has_no_workflow_or_a_taken_name_is_refused(tmp_path: Path) -> None:
    def write(name: str, text: str) -> str:
        file = tmp_path / name
        file.write_text(text)
        return str(file)

    one, two = write("first_flows.py", FLOW), write("second_flows.py", FLOW)
    assert [one.definition.name for one in load_hosted([one]).list_loaded()] == ["hello"]
    _refused(lambda: load_hosted([one, two]), "first_flows.py:4 and second_flows.py:4 have this name")
    builtin = write("builtin_flows.py", FLOW.replace("hello", "direct"))
    _refused(lambda: load_hosted([builtin]), "a built-in workflow has this name")
    _refused(lambda: load_hosted([write("no_flows.py", "x = 1")]), "no_flows.py has no workflow")
    _refused(lambda: load_hosted([str(tmp_path / "absent.py")]), "no file")
    _refused(
        lambda: load_hosted([write("broken_flows.py", "1 / 0")]),
        "^workflows.modules: importing .*broken_flows.py raised ZeroDivisionError",
    )


def test_a_file_of_a_command_replaces_another_version_of_it_in_the_settings(tmp_path: Path) -> None:
    new, old, other = (tmp_path / name for name in ("flows.py", "old/flows.py", "other.py"))
    old.parent.mkdir()
    new.write_text(FLOW)
    old.write_text(FLOW.replace('"greet"', '"welcome"'))
    other.write_text(FLOW.replace("hello", "goodbye"))
    modules = add_files([str(new), str(other)], [str(old)])
    assert modules == (str(other), str(old))
    assert [one.definition.name for one in load_hosted(modules).list_loaded()] == ["goodbye", "hello"]
    # two versions in the settings are a mistake, whose message tells them apart
    _refused(lambda: load_hosted([str(new), str(old)]), f"{new}:4 and {old}:4 have this name")


def test_a_file_with_the_name_of_a_module_hides_it_from_nobody(tmp_path: Path) -> None:
    """Neither one of the standard library that is loaded, nor one that is loaded later."""
    text = FLOW.replace("from retinue", "from near_the_queue import GREET\nfrom retinue").replace(
        '"greet"', "GREET"
    )
    (tmp_path / "queue.py").write_text(text)
    (tmp_path / "near_the_queue.py").write_text('GREET = "greet"')
    (tmp_path / "antigravity.py").write_text("hidden = True")
    (tmp_path / "pydantic.py").write_text("hidden = True")
    code = (
        "import sys\n"
        "from retinue.flows.modules import load_workflows\n"
        "(flow,) = load_workflows(sys.argv[1])\n"
        "import queue, importlib.util\n"
        "assert queue.Queue, queue\n"
        "assert flow.function.__globals__['GREET'] == 'greet'\n"
        "assert 'queue' != flow.function.__module__\n"
        "for name in ('antigravity', 'pydantic'):\n"
        "    assert not importlib.util.find_spec(name).origin.startswith(sys.argv[2]), name\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "queue.py"), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_named_twice_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "named_twice_flows.py"
    file.write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    (first,), (second,) = load_workflows(file.name), load_workflows(str(file))
    assert first is second
    monkeypatch.syspath_prepend(str(tmp_path))
    hosted = load_hosted([file.name, str(file), "named_twice_flows"])
    assert [one.definition.name for one in hosted.list_loaded()] == ["hello"]


def test_a_file_that_failed_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "failing_flows.py"
    file.write_text("1 / 0")
    for _ in range(2):
        _refused(lambda: load_workflows(str(file)), "ZeroDivisionError")
    file.write_text(FLOW)
    assert [one.name for one in load_workflows(str(file))] == ["hello"]


def test_workflows_of_installed_distributions_are_hosted_and_broken_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed_flows.py").write_text(FLOW)
    monkeypatch.syspath_prepend(str(tmp_path))

    def list_plugins(group: str) -> list[Plugin]:
        targets = ("installed_flows:hello", "installed_flows:Run", "absent_flows:hello", "package_with_yaml")
        return [Plugin(f"p{n}", "", target, f"dist-{n}", "") for n, target in enumerate(targets)]

    monkeypatch.setattr("retinue.flows.modules.list_plugins", list_plugins)
    with capture_logs() as logs:
        hosted = load_hosted([])
    assert [one.definition.name for one in hosted.list_loaded()] == ["hello"]
    assert [line["distribution"] for line in logs] == ["dist-1", "dist-2"]
