"""Finds the workflows in Python that a process executes: in files, modules and installed distributions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
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

_CONTENT = "__retinue_content__"
"""The variable of a module that holds the digest of its file."""


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


def add_files(modules: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """The modules of the settings and the files of a command, for `load_hosted`; raises as it does.

    A file replaces modules with workflows of the same names, because it may be another version of them.
    """
    names = {workflow.name for file in files for workflow in load_workflows(file)}
    others = (module for module in modules if names.isdisjoint(each.name for each in load_workflows(module)))
    return (*others, *files)


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


def choose_workflow(module: str, name: str | None) -> CodeWorkflow:
    """The workflow of a file by its name or that of its function; without a name the only one.

    Raises InvalidSettingError.
    """
    workflows = load_workflows(module)
    if name is None and len(workflows) == 1:
        return workflows[0]
    names = sorted(workflow.name for workflow in workflows)
    by_function = {workflow.function.__name__: workflow for workflow in workflows}
    by_name = {workflow.name: workflow for workflow in workflows}
    chosen = (by_function | by_name).get(name or "")
    if chosen is not None:
        return chosen
    if name is None:
        raise InvalidSettingError(
            "FILE", f"{module} has several workflows", remedy=f"name one: {module}:{names[0]}"
        )
    raise InvalidSettingError(
        "NAME", f"{module} has no workflow {name}", remedy=f"name one of them: {', '.join(names)}"
    )


def _add(hosted: HostedWorkflows, workflow: CodeWorkflow) -> None:
    if workflow.name in list_builtins():
        raise InvalidSettingError(
            f"workflow {workflow.name}",
            "a built-in workflow has this name",
            remedy='give it another: @workflow(name="…")',
        )
    hosted.add(workflow)


def _import_file(path: Path) -> ModuleType:
    """The module of a file, imported once for each content of the file.

    Its name in ``sys.modules`` is private to the path, and its folder is the last place where modules are
    looked for. So the file imports modules of its folder, and no file there hides a module of the standard
    library or an installed one, such as ``queue.py``.
    """
    path = path.resolve()
    if not path.is_file():
        raise InvalidSettingError(SETTING, f"no file {path}", remedy="check the path")
    name = f"retinue_file_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    content = sha256(path.read_bytes()).hexdigest()
    known = sys.modules.get(name)
    if known is not None and vars(known)[_CONTENT] == content:
        return known
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSettingError(SETTING, f"{path} cannot be imported", remedy="name a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)[_CONTENT] = content
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
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
