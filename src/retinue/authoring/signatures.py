"""Derives JSON Schemas from typed functions, and calls them with JSON arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticSchemaGenerationError

from retinue.authoring.context import Context
from retinue.authoring.forms import PlainSchema
from retinue.authoring.json_bytes import with_base64
from retinue.authoring.results import encode_result, gives_parts, has_parts
from retinue.core.artifact_links import FORMAT
from retinue.core.call import Answer
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidParametersError,
    InvalidSettingError,
    OutputInvalidError,
    Problem,
)
from retinue.core.record import Schema
from retinue.mesh.artifacts import STORE_KEY
from retinue.mesh.schema.checks import compile_schema
from retinue.mesh.schema.messages import describe_shape


def _without_class_titles(schema: dict[str, Any], class_name: str) -> dict[str, Any]:
    names = {class_name, *schema.get("$defs", {})}
    for part in (schema, *schema.get("$defs", {}).values()):
        if part.get("title") in names:
            part.pop("title")
    return schema


class _Arguments(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=False, extra="ignore")


class _OpenArguments(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Signature:
    """How to call one function with JSON; made by `read_signature`."""

    where: str
    arguments: type[BaseModel]
    input_schema: Schema
    output_schema: Schema | None
    result: TypeAdapter[Any] | None
    context_name: str | None
    is_async: bool
    names: Mapping[str, str]
    takes_artifacts: bool = False

    def bind(self, arguments: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Keyword arguments of the function; raises InvalidParametersError."""
        try:
            # a link becomes an artifact that is read from the store of the context
            store = {STORE_KEY: getattr(context, "artifacts", None)} if self.takes_artifacts else None
            model = self.arguments.__pydantic_validator__.validate_python(arguments, context=store)
        except ValidationError as error:
            raise InvalidParametersError(self._explain(arguments, error)) from error
        bound = {self.names[k]: v for k, v in model.__dict__.items()}
        if model.__pydantic_extra__:
            bound.update(model.__pydantic_extra__)
        if self.context_name is not None:
            bound[self.context_name] = context
        return bound

    def _explain(self, arguments: Mapping[str, Any], error: ValidationError) -> list[Problem]:
        """The problems in the words of the schema check, or where it has none, in those of pydantic."""
        check = compile_schema(self.input_schema, f"input of {self.where}")
        texts = {problem.path: problem for problem in check.explain(arguments, self.input_schema)}
        problems = [
            Problem(
                ".".join(map(str, fault["loc"])),
                f"{_dotted(fault['loc'])}{fault['msg']}; it is {describe_shape(fault['input'])}",
            )
            for fault in error.errors(include_url=False)
        ]
        return [texts.get(problem.path, problem) for problem in problems]

    def encode(self, value: Any) -> Any:
        """The result as a JSON value; content parts are unchanged. Raises OutputInvalidError."""
        if has_parts(value):
            if self.output_schema is not None and not isinstance(value, Answer):
                check = compile_schema(self.output_schema, f"output of {self.where}")
                if not check.is_valid(None):
                    raise OutputInvalidError.not_announced(self.where)
            return value
        return encode_result(self.where, value, self.result)


def call_in_thread(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Call a function in a thread, replacing exceptions that a future cannot carry, such as StopIteration."""
    try:
        return function(*args, **named)
    except (StopIteration, SystemExit, KeyboardInterrupt) as error:
        name = type(error).__name__
        reason = str(error).partition("\n")[0]
        raise ExecutionFailedError(f"{name}: {reason}".removesuffix(": "), exception=name) from error


def describe_object(value: Any) -> str:
    """Describes a value that is no plain function, such as "the class Trip" or "an object of Trip"."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    return f"an object of {type(value).__qualname__}"


def _dotted(location: tuple[str | int, ...]) -> str:
    return f"'{'.'.join(str(at) for at in location)}': " if location else ""


def read_signature(
    function: Callable[..., Any],
    where: str,
    *,
    reads_result: bool = True,
    context_type: type[Any] = Context,
) -> Signature:
    """The signature of a function; raises InvalidSettingError for parameters that JSON cannot represent.

    Without ``reads_result`` the return annotation is ignored, for functions whose result is not JSON. A
    parameter of the ``context_type`` is no argument: `Signature.bind` gets its value.
    """
    hints = _read_hints(function, where)
    _check_kind(function, where, hints.get("return"))
    parameters = _read_parameters(function, where, hints, context_type)
    shape = _OpenArguments if parameters.is_open else _Arguments
    try:
        arguments = create_model("Arguments", __base__=shape, **parameters.fields)
        input_schema = _render(arguments.model_json_schema, "validation", "Arguments")
        if not parameters.is_open:
            # a misspelt argument is refused; what fits an author's own schema is not refused by the model
            input_schema["additionalProperties"] = False
        returned = hints.get("return", Any) if reads_result else Any
        is_plain = returned is Any or gives_parts(returned)
        result = None if is_plain else TypeAdapter(with_base64(returned))
        output_schema = (
            None
            if result is None
            else _render(result.json_schema, "serialization", getattr(returned, "__name__", ""))
        )
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise _explain_type(where, error, parameters, hints.get("return", Any)) from error
    return Signature(
        where=where,
        arguments=arguments,
        input_schema=input_schema,
        output_schema=output_schema,
        result=result,
        context_name=parameters.context_name,
        is_async=inspect.iscoroutinefunction(function),
        names=parameters.names,
        takes_artifacts=FORMAT.encode() in orjson.dumps(input_schema),
    )


def _read_hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """The annotations of a function; raises InvalidSettingError for other objects and unknown names."""
    # a wrapper such as that of functools.cache tells the function inside
    if not inspect.isroutine(function) and not hasattr(function, "__wrapped__"):
        raise InvalidSettingError(
            f"skill {where}",
            f"{describe_object(function)} is not a function",
            remedy="write a function with def, or give a method of an object",
        )
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidSettingError(
            f"skill {where}", str(error), remedy="import the type at the module's top"
        ) from error


@dataclass(slots=True)
class _Parameters:
    """The parameters of a function: fields of a model, their names, and the parameter for the context.

    A function with ``**options`` is open.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    context_name: str | None = None
    is_open: bool = False


def _read_parameters(
    function: Callable[..., Any], where: str, hints: Mapping[str, Any], context_type: type[Any]
) -> _Parameters:
    parameters = _Parameters()
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        is_plain_context = context_type is Context and parameter.name == "ctx" and annotation is Any
        if _is_context(annotation, context_type) or is_plain_context:
            if parameters.context_name is not None:
                raise InvalidSettingError(
                    f"skill {where}",
                    f"parameters {parameters.context_name} and {parameter.name} are both the context",
                    remedy="declare it once",
                )
            parameters.context_name = parameter.name
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            parameters.is_open = True
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise InvalidSettingError(
                f"skill {where}",
                f"parameter {parameter.name} has no name in JSON",
                remedy="write it as an ordinary named parameter",
            )
        else:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            if default is not ...:
                _check_default(where, parameter.name, annotation, default)
            # A field must not start with "_" or shadow an attribute of the model; the alias is the real name.
            name = f"p_{parameter.name}"
            parameters.names[name] = parameter.name
            parameters.fields[name] = (with_base64(annotation), _field(default, parameter.name))
    return parameters


def _explain_type(
    where: str,
    error: PydanticSchemaGenerationError | PydanticUserError,
    parameters: _Parameters,
    returned: Any,
) -> InvalidSettingError:
    """The error for a type that JSON cannot represent."""
    if error.code == "typed-dict-version":
        return InvalidSettingError(
            f"skill {where}",
            "this Python does not tell the keys of a typing.TypedDict",
            remedy="take TypedDict from typing_extensions, or a dataclass",
        )
    return InvalidSettingError(
        f"skill {where}",
        _name_culprit(parameters.fields, parameters.names, returned) or str(error).splitlines()[0],
        remedy="use str, int, float, bool, list, dict, a dataclass or a pydantic model",
    )


def _check_default(where: str, name: str, annotation: Any, default: Any) -> None:
    """Refuse a default that is not of the declared type: the function would get it as it is."""
    if annotation is Any or not isinstance(default, str | int | float | list | dict | tuple | None):
        return  # another object, such as a mark for "not given", is the author's own
    try:
        TypeAdapter(annotation).validate_python(default, strict=True)
    except ValidationError:
        shown = getattr(annotation, "__qualname__", None) or str(annotation).replace("typing.", "")
        remedy = (
            f"write {name}: {shown} | None = None"
            if default is None
            else f"give a default of that type, or declare the type of {default!r:.50}"
        )
        raise InvalidSettingError(
            f"skill {where}",
            f"the default of {name} is {describe_shape(default)}, not {shown}",
            remedy=remedy,
        ) from None
    except Exception:  # noqa: BLE001 - a type that pydantic cannot read is refused with the others
        return


def _check_kind(function: Callable[..., Any], where: str, returned: Any) -> None:
    """Refuse functions that no call can run; raises InvalidSettingError."""
    plain = inspect.unwrap(function)
    is_stream = inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)
    if is_stream or typing.get_origin(returned) in _STREAMS:
        raise InvalidSettingError(
            f"skill {where}",
            "it is a generator, but a call has one result",
            remedy="return a list, and report steps with ctx.progress",
        )
    first = next(iter(inspect.signature(function).parameters.values()), None)
    owner = getattr(plain, "__qualname__", "").rpartition(".")[0]
    is_method = owner and not owner.endswith("<locals>")
    if is_method and first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
        name = plain.__name__
        raise InvalidSettingError(
            f"skill {where}",
            f"{name} is a method without its object: {first.name} would be an argument",
            remedy=f"add the method of an object, such as agent.skill({owner.rpartition('.')[2]}().{name})",
        )


_STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator)


def _name_culprit(parameters: Mapping[str, Any], names: Mapping[str, str], returned: Any) -> str:
    """Which parameter, or the result, has a type that JSON cannot represent; "" if it is not found."""
    typed = [(f"parameter {names[field]}", annotation) for field, (annotation, _) in parameters.items()]
    for what, annotation in (*typed, ("the result", returned)):
        try:
            TypeAdapter(annotation).json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError):
            shown = getattr(annotation, "__qualname__", None) or str(annotation)
            return f"{what} has the type {shown}, which JSON cannot represent"
    return ""


def _is_context(annotation: Any, context_type: type[Any]) -> bool:
    return annotation is context_type or context_type in typing.get_args(annotation)


def _field(default: Any, name: str) -> Any:
    return Field(default, alias=name)


def _render(
    make: Callable[..., dict[str, Any]], mode: Literal["validation", "serialization"], class_name: str
) -> dict[str, Any]:
    schema = _without_class_titles(make(by_alias=True, schema_generator=PlainSchema, mode=mode), class_name)
    # The order in which people write a schema; pydantic sorts its keys.
    first = [k for k in ("type", "properties", "required") if k in schema]
    return {k: schema[k] for k in (*first, *(k for k in schema if k not in first))}
