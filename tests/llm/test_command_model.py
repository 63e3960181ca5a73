"""The back-end ``command``: fake command-line agents as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import CallTimedOutError, ModelError
from retinue.llm.command_model import CommandModel, list_arguments
from retinue.llm.command_output import OutputReader
from retinue.llm.completion import ModelPrompt, ModelReply, Usage, ignore_text
from retinue.llm.spec import SEED_MODELS, ModelSpec, check_spec
from retinue.llm.spending import Ledger
from tests.llm.programs import Program, answer, read_calls, write_program

KEY = "sk-very-secret-0123456789abcdef"
PROMPT = ModelPrompt("Be brief.", "What is 6 times 7? 'quotes' $HOME `x`", 100)
PROGRAMS: tuple[Program, ...] = ("claude", "gemini", "codex")
BYPASSES = (
    "dangerously",
    "yolo",
    "bypass",
    "full-auto",
    "danger-full-access",
    "allow-all",
    "skip-permissions",
)


def model_of(bin_folder: Path, program: str, **options: Any) -> CommandModel:
    spec = check_spec(ModelSpec("tester", command=program, **options))
    environ = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": KEY}
    return CommandModel(spec, Ledger(bin_folder / "spent.json", spec), {**environ, "CLAUDECODE": "1"})


async def ask(tmp_path: Path, name: Program, body: str, **options: Any) -> ModelReply:
    write_program(tmp_path, name, body)
    return await model_of(tmp_path, name, **options).complete(PROMPT, ignore_text)


async def fail(tmp_path: Path, name: Program, body: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(tmp_path, name, body, **options)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_gets_the_prompt_on_its_standard_input_and_answers(
    tmp_path: Path, name: Program
) -> None:
    found = await ask(tmp_path, name, answer(name, "It is\n42."))
    assert found.text == "It is\n42."
    assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 5)
    call = read_calls(tmp_path)[0]
    assert call["prompt"] == f"{PROMPT.instructions}\n\n{PROMPT.task}\n"
    assert not any(PROMPT.task in one for one in call["arguments"])


async def test_claude_tells_its_cost_and_its_model(tmp_path: Path) -> None:
    found = await ask(tmp_path, "claude", answer("claude", "ok", cost_usd=0.25))
    assert found.usage.cost_usd == 0.25
    assert found.model == "claude-fake"


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_flag_switches_off_the_permission_checks(name: Program) -> None:
    arguments = " ".join(list_arguments(ModelSpec("x", command=name), name))
    assert not any(word in arguments for word in BYPASSES)


async def test_configured_args_and_the_model_are_passed_on(tmp_path: Path) -> None:
    await ask(tmp_path, "codex", answer("codex", "ok"), model="gpt-x", args=("--mine", "a b"))
    arguments = read_calls(tmp_path)[0]["arguments"]
    assert arguments[0] == "exec"
    assert arguments[-5:] == ["--model", "gpt-x", "--mine", "a b", "-"]


async def test_a_program_runs_in_an_empty_folder_of_its_own_without_the_hubs_variables(
    tmp_path: Path,
) -> None:
    await ask(tmp_path, "claude", answer("claude", "ok"))
    call = read_calls(tmp_path)[0]
    assert call["files"] == []
    assert Path(call["folder"]) != Path.cwd()
    left = await asyncio.to_thread(os.path.lexists, call["folder"])
    assert not left
    assert call["environ"]["HOME"] == os.environ["HOME"]
    assert "CLAUDECODE" not in call["environ"]
    assert not any(name.startswith("RETINUE_") for name in call["environ"])
    assert call["group"] != os.getpgid(0)


async def test_a_configured_folder_is_used(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "README").write_text("x")
    await ask(tmp_path, "claude", answer("claude", "ok"), folder=project)
    assert read_calls(tmp_path)[0]["files"] == ["README"]


@pytest.mark.parametrize("name", ["gemini", "codex"])
async def test_only_the_empty_folder_is_vouched_for(tmp_path: Path, name: Program) -> None:
    """In a folder with files the program itself decides whether it trusts them."""
    await ask(tmp_path, name, answer(name, "ok"))
    await ask(tmp_path, name, answer(name, "ok"), folder=tmp_path)

    def is_trusted(call: dict[str, Any]) -> bool:
        in_environment = call["environ"].get("GEMINI_CLI_TRUST_WORKSPACE") == "true"
        return in_environment or "--skip-git-repo-check" in call["arguments"]

    assert [is_trusted(call) for call in read_calls(tmp_path)] == [True, False]


async def test_the_text_is_told_while_it_is_written(tmp_path: Path) -> None:
    told = asyncio.Event()

    async def take(piece: str) -> None:
        if "first" in piece:
            told.set()
            (tmp_path / "told").touch()

    line = '{"type":"assistant","message":{"content":[{"type":"text","text":"%s"}]}}'
    body = f"""print({line % "first"!r}, flush=True)
while not os.path.exists(os.path.join(folder, "told")):
    time.sleep(0.01)
print({line % "second"!r}, flush=True)"""
    write_program(tmp_path, "claude", body)
    async with asyncio.timeout(60):
        found = await model_of(tmp_path, "claude").complete(PROMPT, take)
    assert told.is_set()
    assert found.text == "first\n\nsecond"


@pytest.mark.parametrize("name", PROGRAMS)
async def test_plain_text_is_taken_as_the_answer_and_its_usage_estimated(
    tmp_path: Path, name: Program
) -> None:
    found = await ask(tmp_path, name, 'print("just\\n{text}")')
    assert found.text == "just\n{text}"
    assert found.usage.is_estimated
    assert found.usage.input_tokens > 0


async def test_any_program_can_be_a_model(tmp_path: Path) -> None:
    (tmp_path / "parrot").write_text("#!/bin/sh\necho you said: $1\ncat\n")
    (tmp_path / "parrot").chmod(0o755)
    found = await model_of(tmp_path, "parrot", args=("hello",)).complete(PROMPT, ignore_text)
    assert found.text.startswith("you said: hello\nBe brief.")
    assert PROMPT.task in found.text


AUTH_ERROR = r"""sys.stderr.write('{\n "error": {\n  "message": "Please set an Auth method"\n }\n}\n')
sys.exit(41)"""


@pytest.mark.parametrize(
    ("name", "body", "reason", "said"),
    [
        (
            "claude",
            "sys.stderr.write('it broke\\n'); sys.exit(3)",
            "program",
            "claude ended with code 3: it broke",
        ),
        ("claude", "sys.exit(1)", "program", "claude ended with code 1"),
        ("claude", "", "empty", "its answer is empty"),
        (
            "claude",
            """print('{"type":"result","is_error":true,"result":"Invalid API key · Please run /login"}')""",
            "login",
            "Please run /login",
        ),
        (
            "gemini",
            """print('{"error":{"type":"E","message":"quota exceeded"}}')""",
            "program",
            "quota exceeded",
        ),
        (
            "codex",
            """print('{"type":"turn.failed","error":{"message":"stream error"}}')""",
            "program",
            "stream",
        ),
        (
            "gemini",
            AUTH_ERROR,
            "login",
            "gemini ended with code 41: Please set an Auth method",
        ),
        ("codex", "os.kill(os.getpid(), 9)", "program", "ended by signal 9"),
    ],
)
async def test_a_failure_tells_what_the_program_said(
    tmp_path: Path, name: Program, body: str, reason: str, said: str
) -> None:
    error = await fail(tmp_path, name, body)
    assert error.reason == reason
    assert said in error.message


async def test_the_key_is_removed_from_what_a_program_says(tmp_path: Path) -> None:
    error = await fail(tmp_path, "claude", "sys.exit('bad key ' + os.environ['ANTHROPIC_API_KEY'])")
    assert "bad key [key]" in error.message


@pytest.mark.parametrize("key", ["sk-ant-api03-AAAABBBBCCCCDDDD", "sk-proj-" + "a1" * 20, "AIza" + "S" * 35])
async def test_a_key_that_only_the_program_knows_is_removed_too(tmp_path: Path, key: str) -> None:
    error = await fail(tmp_path, "claude", f"sys.exit('bad key {key} of task-management-service')")
    assert error.message.endswith("bad key [key] of task-management-service")


async def test_a_program_that_prints_too_much_is_ended_and_what_it_printed_is_left_out(
    tmp_path: Path,
) -> None:
    error = await fail(tmp_path, "claude", "while True: sys.stdout.write('x' * 2**20)")
    assert error.message.endswith("claude printed more than 16,777,216 bytes, and was ended")


def test_a_long_line_is_read_in_time_that_grows_with_its_length() -> None:
    text = "x" * 8_000_000
    line = json.dumps({"type": "result", "result": text}).encode()
    reader, began = OutputReader(), time.process_time()
    for at in range(0, len(line), 1024):
        reader.feed(line[at : at + 1024])
    assert reader.finish().text == text
    # reading the line anew with each piece takes 30 s
    assert time.process_time() - began < 2


async def test_a_program_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot start claude-of-nobody"):
        await model_of(tmp_path, "claude-of-nobody").complete(PROMPT, ignore_text)


LINGER = """import subprocess
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
with open(os.path.join(folder, "pids"), "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(os.path.join(folder, "pids"), os.path.join(folder, "ready"))
time.sleep(300)"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_time_out_and_a_cancellation_kill_the_program_and_what_it_started(tmp_path: Path) -> None:
    write_program(tmp_path, "claude", LINGER)
    with pytest.raises(CallTimedOutError) as caught:
        await model_of(tmp_path, "claude", timeout_s=1.5).complete(PROMPT, ignore_text)
    assert "llm.tester.timeout_s" in caught.value.remedy
    pids = [int(one) for one in (tmp_path / "ready").read_text().split()]
    assert not any(alive(pid) for pid in pids)
    (tmp_path / "ready").unlink()
    task = asyncio.create_task(model_of(tmp_path, "claude").complete(PROMPT, ignore_text))
    until = time.monotonic() + 20
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pids = [int(one) for one in (tmp_path / "ready").read_text().split()]
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_output_is_read_alike_in_whatever_pieces_it_comes(size: int) -> None:
    lines = (
        '{"type":"system","model":"m"}\n'
        '{"type":"assistant","message":{"content":[{"type":"text","text":"ü 1"}]}}\n'
        '{"type":"stream_event","event":{}}\nnot json\n{"type":"result","result":"ü 2","is_error":false}'
    ).encode()
    reader = OutputReader()
    told = "".join(reader.feed(lines[at : at + size]) for at in range(0, len(lines), size))
    found = reader.finish()
    assert told == "ü 1"
    assert (found.text, found.model, found.problem) == ("ü 2", "m", "")


async def test_a_connection_that_codex_lost_and_found_again_is_no_failure(tmp_path: Path) -> None:
    lost = """print('{"type":"error","message":"Reconnecting... 2/5 (stream disconnected)"}')"""
    found = await ask(tmp_path, "codex", f"{lost}\n{answer('codex', 'ok')}")
    assert found.text == "ok"


def test_the_object_of_gemini_is_not_told_as_text_and_names_the_model_that_answered() -> None:
    tokens = {"small": {"prompt": 1, "total": 2}, "large": {"prompt": 10, "candidates": 5, "total": 17}}
    stats = {"models": {name: {"tokens": one} for name, one in tokens.items()}}
    printed = json.dumps({"session_id": "s", "response": "42", "stats": stats}, indent=2).encode()
    reader = OutputReader()
    assert reader.feed(printed + b"\n") == ""
    found = reader.finish()
    assert (found.text, found.model) == ("42", "large")
    assert found.usage == Usage(11, 8)


def test_an_answer_that_is_json_itself_is_an_answer() -> None:
    reader = OutputReader()
    reader.feed(b'{"plan": "x", "steps": []}\n')
    assert reader.finish().text == '{"plan": "x", "steps": []}'


def test_the_seeds_programs_are_those_of_their_vendors() -> None:
    assert [spec.program for spec in SEED_MODELS.values()] == ["claude", "gemini"]
