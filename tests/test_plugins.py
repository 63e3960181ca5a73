"""What is read of installed distributions: entry points, without importing what they point to."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from retinue import Agent
from retinue.cli.program import TABLE
from retinue.core.errors import DefinitionError, InvalidSettingError, UnknownWorkflowError
from retinue.hub.resources import WorkflowPrompts
from retinue.plugins import AGENTS, COMMANDS, WORKFLOWS, find_plugin, list_plugins
from retinue.runtime.parts.children import child_specs
from retinue.settings import load_settings
from retinue.storage.state import State
from retinue.workflows.definitions import loading
from retinue.workflows.library import Library
from tests.cli.conftest import Retinue
from tests.cli.conftest import retinue as retinue
from tests.plugins import hide_test_writer, install, install_words
from tests.plugins import site as site


def test_the_test_writer_declares_its_agents_with_their_ports_its_workflow_and_its_command(
    site: Path,
) -> None:
    assert {plugin.name: plugin.qualifier for plugin in list_plugins(AGENTS)} == {
        "plan-agent": "8001",
        "build-agent": "8002",
        "test-agent": "8003",
    }
    assert [plugin.name for plugin in list_plugins(WORKFLOWS)] == ["testwriter"]
    (demo,) = [plugin for plugin in list_plugins(COMMANDS) if plugin.name == "demo"]
    assert (demo.name, demo.summary) == ("demo", TABLE["demo"][1])
    assert demo.distribution == "retinue-testwriter"


def test_the_same_is_read_as_by_the_standard_library(site: Path) -> None:
    install_words(site)
    for group in (AGENTS, WORKFLOWS, COMMANDS):
        ours = {(plugin.distribution, plugin.target) for plugin in list_plugins(group)}
        theirs = importlib.metadata.entry_points(group=group)
        assert ours == {(point.dist.name, point.value) for point in theirs if point.dist is not None}


def test_a_distribution_further_along_the_path_is_not_seen_twice(site: Path) -> None:
    hide_test_writer(site)
    assert list_plugins(AGENTS) == ()


def test_a_name_may_have_dots_of_its_own(site: Path) -> None:
    hide_test_writer(site)
    install(site, "dots", {AGENTS: {"a.b": "m:x", "a.c.80": "m:y"}, COMMANDS: {"say": "m:z"}})
    assert [(one.name, one.qualifier) for one in list_plugins(AGENTS)] == [("a.b", ""), ("a.c", "80")]
    assert [(one.name, one.qualifier) for one in list_plugins(COMMANDS) if one.name != "koi"] == [("say", "")]


def test_damaged_metadata_is_passed_over(site: Path) -> None:
    (site / "broken-1.dist-info").mkdir()
    (site / "broken-1.dist-info" / "entry_points.txt").write_bytes(
        b"[retinue.agents]\n\xff\n# a = b\nx = y:z\n"
    )
    found = find_plugin(AGENTS, "x")
    assert found is not None
    assert (found.target, found.distribution, found.summary) == ("y:z", "broken", "")


def test_two_distributions_with_an_agent_of_one_name_keep_the_hub_from_starting(site: Path) -> None:
    install_words(site)
    install_words(site, "word-games")
    with pytest.raises(
        InvalidSettingError, match="word-agent: declared by word-games and by word-tools"
    ) as caught:
        child_specs(load_settings(), State(site), "http://127.0.0.1:1", bare=False, environ={})
    assert caught.value.remedy == "uninstall word-games or word-tools"
    assert child_specs(load_settings(), State(site), "http://127.0.0.1:1", bare=True, environ={}) == []


def test_two_distributions_with_a_command_of_one_name_are_named(site: Path, retinue: Retinue) -> None:
    install_words(site)
    install_words(site, "word-games")
    refused = retinue("count", "a b")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: retinue.commands: count: declared by word-games and by word-tools"
        " — uninstall word-games or word-tools\n"
    )
    assert retinue("--help").stdout.count("count ") == 1


async def test_a_workflow_that_two_have_is_listed_with_its_problem_and_the_others_work(site: Path) -> None:
    install_words(site)
    files = {"workflows/direct.yaml": "name: direct\nsteps: [{id: a, skill: b}]\n"}
    install(site, "word-games", {WORKFLOWS: {"games": "word_games.workflows"}}, files)
    library = Library()
    listed = {stored.name: stored.problem for stored in await library.list_all()}
    assert listed["word-count"] is None
    assert "declared by retinue and by word-games" in str(listed["direct"])
    with pytest.raises(InvalidSettingError) as caught:
        await library.get("direct")
    assert caught.value.remedy == "uninstall word-games"
    assert (await library.get("word-count")).definition.name == "word-count"


async def test_a_workflow_with_a_broken_expression_has_a_prompt_and_is_refused_when_it_starts(
    site: Path,
) -> None:
    """Prompts come from definitions whose expressions are not compiled, to spare a hub the engine."""
    files = {"workflows/loss.yaml": "name: loss\nsteps:\n  - id: a\n    skill: b\n    when: input.x ==\n"}
    install(site, "word-loss", {WORKFLOWS: {"loss": "word_loss.workflows"}}, files)
    agent, library = Agent("hub", version="1.0.0", description="A hub."), Library()
    await WorkflowPrompts(agent, library).refresh()
    assert {"direct", "loss"} <= {prompt.name for prompt in agent.record().prompts}
    (problem,) = [stored.problem for stored in await library.list_all() if stored.name == "loss"]
    with pytest.raises(DefinitionError, match=r"loss\.yaml:5") as refused:
        await library.get("loss")
    assert str(refused.value) == str(problem)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"__init__.py": "import missing_module"}, "cannot be imported: No module named 'missing_module'"),
        ({"__init__.py": "1 / 0"}, "cannot be imported: ZeroDivisionError: division by zero"),
        ({"__init__.py": "raise SystemExit(3)"}, "cannot be imported: SystemExit: 3"),
        ({"__init__.py": "def"}, "cannot be imported: SyntaxError: "),
        ({"__init__.py": "", "flows.py": ""}, "is no package"),
    ],
    ids=["missing", "raises", "exits", "syntax", "module"],
)
async def test_a_package_that_cannot_be_imported_is_named_once_and_the_other_workflows_are_read(
    site: Path, files: dict[str, str], reason: str
) -> None:
    install_words(site)
    target = "word_loss.flows" if "flows.py" in files else "word_loss"
    install(site, "word-loss", {WORKFLOWS: {"loss": target}}, files)
    prompts = WorkflowPrompts(Agent("hub", version="1.0.0", description="A hub."), Library())
    with capture_logs() as log_lines:
        for _ in range(3):
            await prompts.refresh()
    assert (await Library().get("word-count")).definition.name == "word-count"
    listed = {stored.name: stored.problem for stored in await Library().list_all()}
    assert reason in str(listed["(word-loss)"])
    assert listed["word-count"] is None
    (line,) = [line for line in log_lines if line["event"] == "workflows cannot be read"]
    assert (line["log_level"], line["distribution"]) == ("warning", "word-loss")
    assert reason in line["reason"]


def test_a_broken_package_is_named_in_the_list_of_workflows(site: Path, retinue: Retinue) -> None:
    install(site, "word-loss", {WORKFLOWS: {"loss": "word_loss"}}, {"__init__.py": "1 / 0"})
    listed = retinue("workflows")
    assert listed.exit_code == 0
    assert "plan-build-test" in listed.stdout
    assert listed.stderr.count("word-loss declares word_loss, which cannot be imported") == 1


def test_a_command_that_cannot_be_imported_names_its_distribution(site: Path, retinue: Retinue) -> None:
    install(site, "word-loss", {COMMANDS: {"lose": "word_loss.commands:lose"}})
    refused = retinue("lose")
    assert refused.exit_code == 2
    assert "word-loss declares word_loss.commands:lose, which cannot be imported" in refused.stderr
    assert refused.stderr.endswith("— reinstall or uninstall word-loss\n")


def test_a_command_of_retinue_is_never_replaced(site: Path, retinue: Retinue) -> None:
    install(site, "word-loss", {COMMANDS: {"call": "word_loss.commands:lose"}})
    assert retinue("call", "--help").exit_code == 0


def test_without_the_test_writer_the_demo_is_listed_and_says_how_to_get_it(
    site: Path, retinue: Retinue
) -> None:
    hide_test_writer(site)
    assert TABLE["demo"][1] in retinue("--help").stdout
    refused = retinue("demo")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: demo: it is not installed — pip install 'retinue[demo]'; from a checkout:"
        " pip install . ./packages/retinue-testwriter\n"
    )
    with pytest.raises(UnknownWorkflowError):
        loading.load_builtin("plan-build-test")
