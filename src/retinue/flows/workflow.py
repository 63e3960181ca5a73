"""The decorator ``@workflow``: a typed function as a workflow with input and output schemas."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from hashlib import sha256
from pathlib import Path
from typing import Any, overload

from pydantic import ValidationError

from retinue.authoring.signatures import Signature, read_signature
from retinue.core.errors import InvalidSettingError
from retinue.flows.run import Run
from retinue.flows.source_digest import digest_source
from retinue.workflows.definitions.definition import CodeDefinition, CodeReference
from retinue.workflows.definitions.documents import Document, Place
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.definitions.starts import Schedule
from retinue.workflows.runs.hosting import HostedWorkflow, RunCode

Function = Callable[..., Awaitable[Any]]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The file of a function, its line there, and the digest of the file's code.

    Comments, docstrings and layout do not change the digest, nor does the version of Python.
    """

    file: str
    line: int
    digest: str


class CodeWorkflow:
    """A workflow in Python, made by `workflow`; called, it calls its function.

    ``continues`` are the digests of earlier code whose runs this code goes on with.
    """

    def __init__(
        self,
        function: Function,
        definition: CodeDefinition,
        signature: Signature,
        place: SourcePlace,
        continues: frozenset[str],
    ) -> None:
        self.function = function
        self.definition = definition
        self.signature = signature
        self.place = place
        self.continues = continues
        update_wrapper(self, function)

    def __call__(self, *args: Any, **more: Any) -> Awaitable[Any]:
        return self.function(*args, **more)

    def __repr__(self) -> str:
        return f"<workflow {self.name} of {self.place.file}:{self.place.line}>"

    @property
    def name(self) -> str:
        """The name by which runs of it are started."""
        return self.definition.name

    @property
    def loaded(self) -> Loaded:
        """The workflow as the library holds it."""
        document = Document(self.definition.to_json(), self.place.file, {(): Place(self.place.line, 1)})
        return Loaded(self.definition, document, is_own=True)

    def is_same(self, other: CodeWorkflow) -> bool:
        """Whether both are made by one function of one file, which may be imported under several names."""
        code, of_other = self.function.__code__, other.function.__code__
        is_there = (code.co_filename, self.place) == (of_other.co_filename, other.place)
        return self is other or (is_there and self.definition == other.definition)

    @property
    def hosted(self) -> HostedWorkflow:
        """The workflow as a node announces it to others."""
        own = self.definition.code
        code = RunCode(self.name, own.file, own.function, own.digest)
        return HostedWorkflow(code, self.definition.to_json(), self.continues)


@overload
def workflow(function: Function, /) -> CodeWorkflow: ...


@overload
def workflow(
    *,
    name: str | None = None,
    version: str | None = None,
    schedule: str | Mapping[str, Any] | None = None,
    timezone: str = "UTC",
    input: Any = None,
    continues: tuple[str, ...] = (),
) -> Callable[[Function], CodeWorkflow]: ...


def workflow(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    schedule: str | Mapping[str, Any] | None = None,
    timezone: str = "UTC",
    input: Any = None,  # noqa: A002 - the word of the grammar
    continues: tuple[str, ...] = (),
) -> CodeWorkflow | Callable[[Function], CodeWorkflow]:
    """Make an async function a workflow; the parameter of the type `Run` makes its steps.

    The other parameters are the input. Their types give its schema, the return annotation that of the
    output, the docstring the description. ``schedule`` is a cron line or the keys of a schedule, read in
    ``timezone``, with the ``input`` of its runs; it takes effect when somebody adds it. ``continues`` are the
    digests of earlier code whose runs this code goes on with.

    Raises InvalidSettingError.

    >>> @workflow
    ... async def greet(run: Run, who: str) -> str:
    ...     "Greets by an agent."
    ...     return await run.call("greet", {"who": who})
    >>> greet.definition.input["required"], greet.definition.description
    (['who'], 'Greets by an agent.')
    """

    if schedule is None and (timezone != "UTC" or input is not None):
        name_of_option = "timezone" if timezone != "UTC" else "input"
        raise InvalidSettingError(
            name_of_option,
            "it belongs to a schedule",
            remedy=f"give a schedule, or leave {name_of_option} out",
        )
    _check_digests(continues)
    rule = _make_schedule(schedule, timezone, input)

    def make(body: Function) -> CodeWorkflow:
        if not inspect.iscoroutinefunction(body):
            raise InvalidSettingError(
                f"workflow {getattr(body, '__name__', body)}",
                "it is no async function",
                remedy="write async def, with a parameter run: Run",
            )
        return _make(body, name or body.__name__, version, rule, continues)

    return make if function is None else make(function)


def _make(
    function: Function, name: str, version: str | None, schedule: Schedule | None, continues: tuple[str, ...]
) -> CodeWorkflow:
    field = f"workflow {name}"
    try:
        signature = read_signature(function, name, context_type=Run)
    except InvalidSettingError as error:
        problem = error.message.partition(": ")[2]
        raise InvalidSettingError(field, problem, remedy=error.remedy) from error
    if signature.context_name is None:
        raise InvalidSettingError(
            field, "no parameter has the type Run", remedy=f"write async def {function.__name__}(run: Run, …)"
        )
    place = find_place(function)
    try:
        definition = CodeDefinition(
            name=name,
            description=inspect.getdoc(function) or "",
            version=version,
            input=dict(signature.input_schema),
            output_schema=None if signature.output_schema is None else dict(signature.output_schema),
            schedule=schedule,
            code=CodeReference(file=place.file, function=function.__qualname__, digest=place.digest),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidSettingError(
            field, f"{where}: {first['msg']}", remedy="correct the decorator"
        ) from error
    return CodeWorkflow(function, definition, signature, place, frozenset(continues))


def _make_schedule(
    schedule: str | Mapping[str, Any] | None, timezone: str, run_input: Any
) -> Schedule | None:
    if schedule is None:
        return None
    keys: dict[str, Any] = {"cron": schedule} if isinstance(schedule, str) else dict(schedule)
    keys.setdefault("timezone", timezone)
    if run_input is not None:
        keys.setdefault("input", run_input)
    try:
        return Schedule.model_validate(keys)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        field = "timezone" if "time zone" in text else "schedule"
        remedy = "correct it" if field == "timezone" else 'write five fields, as in schedule="0 2 * * *"'
        raise InvalidSettingError(field, text, remedy=remedy) from error


def _check_digests(continues: object) -> None:
    """Raise InvalidSettingError for digests of another form, which would let runs wait in silence."""
    if not isinstance(continues, str) and isinstance(continues, Iterable):
        wrong = [
            digest for digest in continues if not isinstance(digest, str) or not _DIGEST.fullmatch(digest)
        ]
        if not wrong:
            return
        problem = f"{wrong[0]!r:.80} is no digest"
    else:
        problem = f"it is a {type(continues).__name__}, and not a tuple of digests"
    raise InvalidSettingError(
        "continues", problem, remedy='write ("sha256:…",), as retinue workflows check OLD.py prints it'
    )


def find_place(function: Function) -> SourcePlace:
    """Where a function is written. Code without a source, as in a console, has the digest of its bytecode."""
    code = function.__code__
    try:
        digest = digest_source(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError, ValueError, RecursionError):
        text = f"{code.co_code.hex()} {code.co_names}"
        digest = f"sha256:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return SourcePlace(Path(code.co_filename).name, code.co_firstlineno, digest)
