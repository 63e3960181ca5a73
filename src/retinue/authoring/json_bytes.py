"""Bytes of parameters and results as base64 text, which is their form in JSON."""

from __future__ import annotations

import types
import typing
from base64 import b64decode
from typing import Annotated, Any

from pydantic import Base64Encoder, EncodedBytes, WithJsonSchema
from pydantic_core import PydanticCustomError


class _StrictBase64(Base64Encoder):
    """Refuses characters that are not base64, which pydantic's own encoder skips."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        try:
            return b64decode(data, validate=True)
        except ValueError as error:
            raise PydanticCustomError(
                "base64_decode", "it is no base64 text: {error}", {"error": str(error)}
            ) from error


_JsonBytes = Annotated[
    bytes,
    EncodedBytes(encoder=_StrictBase64),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


def with_base64(annotation: Any) -> Any:
    """The annotation with base64 text in place of ``bytes``, also within lists, mappings and unions.

    A type that names an encoding of its own is unchanged, as are fields of classes.
    """
    if annotation is bytes:
        return _JsonBytes
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None or not arguments:
        return annotation
    if origin is Annotated:
        first, *metadata = arguments
        inner = first if any(isinstance(entry, EncodedBytes) for entry in metadata) else with_base64(first)
        return annotation if inner is first else Annotated[(inner, *metadata)]
    replaced = tuple(with_base64(argument) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return annotation
    if origin in (typing.Union, types.UnionType):
        return typing.Union[replaced]  # noqa: UP007 - made of a tuple
    return origin[replaced]
