"""What happens in the demo, in its order; then whether all of it did."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retinue_demo.demo import own_folder
from scripts.think_demo.checks import check_story
from scripts.think_demo.mesh import AGENT, Mesh, NotReadyError, wait_for
from scripts.think_demo.screen import CommandFailedError, LiveCommand, Screen

OUTPUT = Path("retinue-demo")
RUN = "think-demo"
KILLED_IN_TURN = 4
"""The hub is killed while the model works on this turn: calls were made before it, and others follow."""

KILLED_IN_TURN_OF_OTHERS = 3
"""The same with a model that follows no script, which may need fewer turns."""

WORK_S = 300.0
POLL_S = 0.3
LOG_LINES = 30


def run_demo(packages: Path, model: str | None) -> int:
    """Run the demo with the MCP servers in ``packages``; the exit status."""
    started = time.monotonic()
    with own_folder(Path(tempfile.gettempdir()).resolve()) as home:
        mesh = Mesh(home, packages, model)
        screen = Screen(mesh.work, mesh.environment)
        try:
            _tell(mesh, screen)
            problems = check_story(mesh, screen, RUN)
        except (NotReadyError, CommandFailedError) as error:
            problems = [str(error)]
        finally:
            mesh.stop()
        if problems:
            screen.say("", "The last lines of the hub:", *mesh.read_log().splitlines()[-LOG_LINES:])
            print("\n".join(f"make demo-think: {problem}" for problem in problems), file=sys.stderr)
            return 1
        OUTPUT.mkdir(exist_ok=True)
        for file in (mesh.work / "prices.py", *mesh.kept.glob("*.py")):
            shutil.copy(file, OUTPUT)
            screen.say(f"  {OUTPUT / file.name}")
    screen.say(f"All of it happened, in {time.monotonic() - started:.0f} s.")
    return 0


def _tell(mesh: Mesh, screen: Screen) -> None:
    screen.say(f"An agent in Markdown, {mesh.agent_file.name}:", "")
    screen.show(*mesh.agent_file.read_text("utf-8").splitlines())
    screen.say(
        "", "Starting a hub with it, its model, three agents of Retinue and two MCP servers from npm …"
    )
    mesh.start()
    screen.run("agents")
    prompt = (
        f"Write tests for the module {mesh.work}/prices.py, keep them in the folder {mesh.kept}, and note in "
        "the knowledge graph how many pass."
    )
    command = ("call", AGENT, json.dumps({"prompt": prompt, "run": RUN}), "--timeout", "600", "--progress")
    with _live(screen, *command) as call:
        turn = KILLED_IN_TURN if mesh.is_scripted else KILLED_IN_TURN_OF_OTHERS
        step = f"think/turn-{turn}/model"
        wait_for(
            lambda: mesh.has_step(RUN, "running", step) or not call.is_running,
            f"the step {step} runs",
            WORK_S,
        )
        if not call.is_running:
            raise CommandFailedError(f"the run ended before turn {turn}, so nothing could be killed in it")
        pid = mesh.kill()
        call.wait(30.0)
    screen.say("", f"$ kill -9 {pid}")
    screen.say(
        f"The hub is gone, in turn {turn} of the run, and all its agents with it. Starting the hub again …"
    )
    mesh.start()
    screen.say("The run goes on by itself. The same call waits for its answer:")
    with _live(screen, *command) as call:
        end = time.monotonic() + WORK_S
        while call.is_running and time.monotonic() < end:
            if mesh.has_step(RUN, "waiting"):
                _approve(screen)
            time.sleep(POLL_S)
        if call.is_running or call.wait(10.0):
            raise CommandFailedError("the call had no answer")
    screen.run("runs", RUN, hides="put: ")
    screen.say()


def _approve(screen: Screen) -> None:
    """Approve what waits for a person, as the owner of the state does at the command line."""
    for approval in json.loads(screen.read("approvals", "--json"))["approvals"]:
        screen.run("approvals")
        screen.run("approvals", "approve", approval["approval"])


@contextmanager
def _live(screen: Screen, *arguments: str) -> Iterator[LiveCommand]:
    command = LiveCommand(screen, *arguments)
    try:
        yield command
    finally:
        command.close()
