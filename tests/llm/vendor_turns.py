"""What a fake vendor answers: one turn of its script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["anthropic", "openai", "google"]
VENDORS: tuple[Vendor, ...] = ("anthropic", "openai", "google")

INPUT_TOKENS, OUTPUT_TOKENS = 12, 7


@dataclass(frozen=True)
class Say:
    """Answer with this text, in pieces; ``ends`` is why the answer ends."""

    text: str
    ends: Literal["stop", "length", "filter"] = "stop"


@dataclass(frozen=True)
class Refuse:
    """Refuse in the vendor's own form."""


@dataclass(frozen=True)
class Fail:
    """Answer with an HTTP error."""

    status: int
    kind: str = "api_error"
    message: str = "something went wrong"
    retry_after: str | None = None


@dataclass(frozen=True)
class Garbage:
    """Answer 200 with a body that is no event of any vendor."""

    body: bytes = b"data: {this is not json\n\n"


@dataclass(frozen=True)
class Cut:
    """Begin to answer and drop the connection."""

    text: str = "half of"


@dataclass(frozen=True)
class EndEarly:
    """Begin to answer and end the response without the event that ends an answer."""

    text: str = "half of"


@dataclass(frozen=True)
class OnlyDone:
    """Answer as compatible servers do that send ``[DONE]`` but no finish reason."""

    text: str


@dataclass(frozen=True)
class Hang:
    """Begin to answer and say nothing more."""

    text: str = "thinking"


@dataclass(frozen=True)
class Pause:
    """Answer with the first text, wait for the server's ``go_on``, and answer with the rest."""

    text: str
    rest: str


@dataclass(frozen=True)
class Move:
    """Redirect to another server."""

    url: str


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool as a vendor sends it; ``arguments`` is the text that the model wrote."""

    name: str
    arguments: str = "{}"
    id: str = "call_1"


@dataclass(frozen=True)
class Act:
    """Answer with thinking, text and calls of tools, each of them in pieces.

    ``stops`` ends the answer within its last call: by the end of the response, or by a dropped connection.
    ``cached`` and ``written`` are the tokens of the prompt that the vendor read from its cache and wrote.
    """

    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    thinking: str = ""
    signature: str = ""
    ends: Literal["stop", "length", "filter"] = "stop"
    stops: Literal["", "end", "drop"] = ""
    cached: int = 0
    written: int = 0


Turn = Say | Act | Refuse | Fail | Garbage | Cut | EndEarly | OnlyDone | Hang | Pause | Move
