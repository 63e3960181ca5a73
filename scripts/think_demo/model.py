"""The scripted model of the demo. It replies as a real model does, from what the conversation holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from retinue.testing import ModelTurn, ScriptedModel
from retinue.thinking.completion import CompletionRequest, ToolMessage, UserMessage

FOLDER = Path(__file__).parent
THINKS_S = 2.0
"""A real model takes this long, too; the demo kills the hub meanwhile."""


def find(request: CompletionRequest) -> ModelTurn:
    needs = (
        "write tests for a Python module",
        "list a folder and write a file",
        "remember facts in a knowledge graph",
    )
    calls = [("find_skills", {"what": need}) for need in needs]
    return ModelTurn("First I look for tools: for tests, for files, and for notes.", calls=calls)


def plan(request: CompletionRequest) -> ModelTurn:
    module, folder = _read_paths(request)
    calls = [
        ("plan-agent__create_plan", {"requirements": module}),
        ("files__list_directory", {"path": folder}),
    ]
    return ModelTurn("I plan the tests, and look at what the folder holds.", calls=calls)


def write(request: CompletionRequest) -> ModelTurn:
    planned = _read_result(request, "plan-agent__create_plan")["plan"]
    return ModelTurn("Now I have them written.", calls=[("build-agent__generate_code", {"plan": planned})])


def check(request: CompletionRequest) -> ModelTurn:
    code = _read_result(request, "build-agent__generate_code")["code"]
    calls = [("test-agent__review_code", {"code": code})]
    return ModelTurn("I run them before I keep them.", calls=calls, wait_s=THINKS_S)


def keep(request: CompletionRequest) -> ModelTurn:
    _, folder = _read_paths(request)
    written = _read_result(request, "build-agent__generate_code")
    review = _read_result(request, "test-agent__review_code")
    note = f"{review['passed']} tests pass, {review['failed']} fail"
    entity = {"name": written["module"], "entityType": "module", "observations": [note]}
    calls = [
        ("files__write_file", {"path": f"{folder}/{written['file_name']}", "content": written["code"]}),
        ("memory__create_entities", {"entities": [entity]}),
    ]
    return ModelTurn(f"{note}. I keep them, and note it.", calls=calls)


def answer(request: CompletionRequest) -> str:
    written = _read_result(request, "build-agent__generate_code")
    review = _read_result(request, "test-agent__review_code")
    return (
        f"{written['module']} has {len(written['tests'])} tests: {review['passed']} pass, {review['failed']} "
        f"fail, and they cover {review['coverage']:g} % of it. They are in {written['file_name']}."
    )


def _read_paths(request: CompletionRequest) -> tuple[str, str]:
    """The module and the folder that the task names."""
    first = next(message for message in request.messages if isinstance(message, UserMessage))
    module, folder = re.findall(r"(/[^,]+),", "\n".join(str(part.value) for part in first.content))
    return module, folder


def _read_result(request: CompletionRequest, tool: str) -> Any:
    """The latest result of a tool, which stands between two marks."""
    texts = [
        str(result.content[0].value)
        for message in request.messages
        if isinstance(message, ToolMessage)
        for result in message.results
        if result.name == tool
    ]
    return json.loads(texts[-1].partition("\n")[2].rpartition("\n")[0])


agent = ScriptedModel(find, plan, write, check, keep, answer, name="thinker", log=FOLDER / "requests.jsonl")
