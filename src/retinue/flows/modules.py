"""Finds the workflows in Python that a process executes: in files, modules and installed distributions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import structlog

from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.flows.body import HostedWorkflows
from retinue.plugins import WORKFLOWS, list_plugins
from retinue.workflows.definitions.loading import list_builtins

if TYPE_CHECKING:
    from retinue.flows.workflow import CodeWorkflow

_log = structlog.get_logger("retinue.workflows")

SETTING = "workflows.modules"


def load_hosted(modules: Sequence[str]) -> HostedWorkflows:
    """The workflows of these files (``flows.py``) and modules (``package.flows``), and of distributions.

    A distribution whose workflow cannot be imported is logged. Raises InvalidSettingError for a module of
    the settings that cannot be imported or has no workflow, and for a name that is taken.
    """
    hosted = HostedWorkflows()
    for module in modules:
        for workflow in load_workflows(module):
            _add(hosted, workflow)
    for plugin in list_plugins(WORKFLOWS):
        if ":" not in plugin.target:
            continue  # a package with files in YAML
        try:
            with _import_errors(f"{WORKFLOWS}: {plugin.name}", plugin.target):
                from retinue.flows.workflow import CodeWorkflow

                installed = plugin.load(WORKFLOWS)
                if not isinstance(installed, CodeWorkflow):
                    raise InvalidSettingError(
                        f"{WORKFLOWS}: {plugin.name}",
                        f"{plugin.target} is no workflow",
                        remedy="use @workflow",
                    )
                _add(hosted, installed)
        except InvalidSettingError as error:
            _log.warning("workflow not hosted", distribution=plugin.distribution, error=error.message)
    return hosted


def load_workflows(module: str) -> Sequence[CodeWorkflow]:
    """The workflows of a file or a module; raises InvalidSettingError, also where it has none."""
    # a hub without workflows in Python does not need it
    from retinue.flows.workflow import CodeWorkflow

    with _import_errors(SETTING, module):
        imported = _import_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    workflows = [value for value in vars(imported).values() if isinstance(value, CodeWorkflow)]
    if not workflows:
        raise InvalidSettingError(
            SETTING, f"{module} has no workflow", remedy="write @workflow above an async function"
        )
    return list({id(workflow): workflow for workflow in workflows}.values())


def _add(hosted: HostedWorkflows, workflow: CodeWorkflow) -> None:
    if workflow.name in list_builtins():
        raise InvalidSettingError(
            f"workflow {workflow.name}",
            "a built-in workflow has this name",
            remedy='give it another: @workflow(name="…")',
        )
    hosted.add(workflow)


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InvalidSettingError(SETTING, f"no file {path}", remedy="check the path")
    # as python does for a script, so that it can import modules of its folder
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidSettingError(SETTING, f"{path} cannot be imported", remedy="name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _import_errors(field: str, imported: str) -> Iterator[None]:
    """Turn any error of an import into InvalidSettingError; a sys.exit there must not end this process."""
    try:
        yield
    except RetinueError:
        raise
    except (Exception, SystemExit) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        raise InvalidSettingError(
            field, f"importing {imported} raised {type(error).__name__}: {line}", remedy="fix the file"
        ) from error
