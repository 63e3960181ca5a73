"""The back-end ``command``: runs a vendor's command-line agent, with the prompt on its standard input.

The program runs in a folder of its own, empty unless configured, so that a caller cannot read this machine's
files through it. No flag that switches off its permission checks is passed unless the user configured it
in ``args``. It has its own process group, and is killed with all that it started when the call ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from retinue.core.errors import CallTimedOutError, ModelError
from retinue.llm.command_output import CommandAnswer, OutputReader, read_errors
from retinue.llm.completion import (
    MAX_ANSWER_BYTES,
    ModelPrompt,
    ModelReply,
    OnText,
    OnUsage,
    Redactor,
    ignore_usage,
)
from retinue.llm.spec import KEY_VARIABLES, ModelSpec
from retinue.llm.spending import Ledger
from retinue.processes.limited import CommandResult, ProgramLimits, run_command

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    # without the user's MCP servers: this mesh may be one of them, and would be called in a circle
    "claude": ("--print", "--output-format", "stream-json", "--verbose", "--strict-mcp-config"),
    "gemini": ("--allowed-mcp-server-names", "none", "--output-format", "json"),
    "codex": ("exec", "--json", "--sandbox", "read-only", "-c", "mcp_servers={}"),
}
"""The arguments with which known programs run once, without a terminal; ``args`` are added."""

_IN_OWN_FOLDER: Mapping[str, tuple[str, ...]] = {"codex": ("--skip-git-repo-check",)}
_VARIABLES_IN_OWN_FOLDER: Mapping[str, Mapping[str, str]] = {"gemini": {"GEMINI_CLI_TRUST_WORKSPACE": "true"}}
"""codex and gemini refuse a folder that no person trusted, since its files could instruct them.

The empty folder of a call has none. In a configured ``folder`` they decide themselves.
"""

_AT_END: Mapping[str, tuple[str, ...]] = {"codex": ("-",)}
"""The last arguments: the prompt is on the standard input."""

TELL_COST = frozenset({"claude"})
"""The programs that tell what a call has cost."""

_HIDDEN_VARIABLES = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT")
"""With these, claude takes itself for a part of the session in which the hub was started."""

_LOGIN_WORDS = ("log in", "login", "authenticat", "auth method", "api key", "unauthorized", "credential")

_LIMITS = ProgramLimits(
    cpu_s=86_400,
    # node reserves address space that it does not use
    memory_bytes=1 << 46,
    processes=1024,
    open_files=8192,
    file_bytes=1 << 34,
    output_bytes=MAX_ANSWER_BYTES,
)
"""The user's own program: only its time and its output are limited."""


class CommandModel:
    """A model behind a command-line agent."""

    def __init__(self, spec: ModelSpec, ledger: Ledger, environ: Mapping[str, str] = os.environ) -> None:
        assert spec.program is not None, "checked with the settings"
        self._spec = spec
        self._ledger = ledger
        self._arguments = list_arguments(spec, spec.program)
        own = {} if spec.folder else _VARIABLES_IN_OWN_FOLDER.get(Path(spec.program).name, {})
        self._environ = dict(own) | {
            name: value
            for name, value in environ.items()
            if name not in _HIDDEN_VARIABLES and not name.startswith("RETINUE_")
        }
        variables = [name for names in KEY_VARIABLES.values() for name in names]
        self._redact = Redactor(environ.get(name, "") for name in (*variables, spec.api_key_env or ""))

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        spec = self._spec
        if prompt.conversation is not None:
            raise ModelError.without_tools(spec.name)
        reader = OutputReader()

        async def read(chunk: bytes) -> None:
            if piece := reader.feed(chunk):
                await on_text(piece)

        with ExitStack() as stack:
            folder = spec.folder
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retinue-llm-")))
            done = await run_command(
                self._arguments,
                folder=folder,
                limits=_within(spec.timeout_s),
                environment=self._environ,
                stdin=f"{prompt.instructions}\n\n{prompt.task}\n".encode(),
                on_stdout=read,
            )
        answer = reader.finish()
        is_answer = done.ok and not answer.problem and bool(answer.text.strip())
        if answer.usage is not None and not is_answer:
            on_usage(answer.usage)
        if done.limit == "wall":
            raise CallTimedOutError(
                f"the command of {spec.name}",
                spec.timeout_s,
                layer="model",
                setting=f"llm.{spec.name}.timeout_s",
            )
        if not done.ok or answer.problem:
            raise self._explain(done, answer)
        if not answer.text.strip():
            raise ModelError.empty(spec.name)
        usage = answer.usage or self._ledger.estimate(prompt, len(answer.text.encode()))
        return ModelReply(answer.text, usage, answer.model or spec.model or self._arguments[0])

    def _explain(self, done: CommandResult, answer: CommandAnswer) -> ModelError:
        name, program = self._spec.name, Path(self._arguments[0]).name
        text = self._redact((answer.problem or read_errors(done.stderr) or answer.text).strip())
        ended = f"{program} ended with code {done.exit_code}" if done.exit_code else f"{program} failed"
        if done.limit == "output":
            # what it printed says nothing of the reason
            text, ended = "", f"{program} printed more than {MAX_ANSWER_BYTES:,} bytes, and was ended"
        elif done.limit is not None:
            ended = f"{program} exceeded its limit of {done.limit}"
        elif done.signal is not None:
            ended = f"{program} was ended by signal {done.signal}"
        problem = f"{ended}: {text}" if text else ended
        if any(word in text.lower() for word in _LOGIN_WORDS):
            return ModelError(name, "login", problem, remedy=f"run {program} by hand and log in")
        return ModelError(name, "program", problem)


def list_arguments(spec: ModelSpec, program: str) -> Sequence[str]:
    """The command line: what the program needs, the model, and the configured ``args``.

    The ``args`` of an unknown program are all that it gets.
    """
    kind = Path(program).name
    model = ("--model", spec.model) if spec.model and kind in _ARGUMENTS else ()
    own = () if spec.folder else _IN_OWN_FOLDER.get(kind, ())
    return (program, *_ARGUMENTS.get(kind, ()), *own, *model, *spec.args, *_AT_END.get(kind, ()))


def _within(timeout_s: float) -> ProgramLimits:
    return ProgramLimits(
        wall_s=timeout_s,
        cpu_s=_LIMITS.cpu_s,
        memory_bytes=_LIMITS.memory_bytes,
        processes=_LIMITS.processes,
        open_files=_LIMITS.open_files,
        file_bytes=_LIMITS.file_bytes,
        output_bytes=_LIMITS.output_bytes,
    )
