"""Hypothesis strategies for the nouns and the wire values, shared by the codecs' tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from retinue.core.allowance import Allowance
from retinue.core.call import Hop, TraceContext, TraceExtension
from retinue.core.record import (
    AgentRecord,
    Endpoint,
    Example,
    Hints,
    Prompt,
    PromptArgument,
    Resource,
    Skill,
    Trait,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Any text that UTF-8 can carry."""

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
"""Text that says something."""

integers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_scalars = st.none() | st.booleans() | integers | floats | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
request_ids = st.none() | integers | texts
params = json_objects | st.lists(json_values, max_size=4)

examples = st.builds(Example, text=st.none() | texts, arguments=st.none() | json_objects, result=json_values)
hints = st.builds(Hints, *[st.booleans()] * 5)
visibilities = st.sampled_from(["private", "mesh", "exposed"])


def _tuples_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, max_size=3).map(tuple)


def skills(skill_id: str) -> st.SearchStrategy[Skill]:
    """A skill of this id with any facts."""
    return st.builds(
        Skill,
        id=st.just(skill_id),
        description=texts,
        title=st.none() | texts,
        input_schema=st.none() | json_objects,
        output_schema=st.none() | json_objects,
        tags=_tuples_of(texts),
        similes=_tuples_of(texts),
        examples=_tuples_of(examples),
        roles=_tuples_of(texts),
        visibility=visibilities,
        hints=hints,
        timeout_s=st.none() | st.floats(min_value=0.1, max_value=1e6),
    )


skill_lists = st.lists(words, max_size=3, unique=True).flatmap(lambda ids: st.tuples(*map(skills, ids)))

records = st.builds(
    AgentRecord,
    name=words,
    version=st.none() | words,
    title=st.none() | texts,
    description=texts,
    maintainer=st.none() | words,
    provider=st.none() | texts,
    endpoints=_tuples_of(st.builds(Endpoint, st.sampled_from(["execute", "mcp"]), words, st.none() | texts)),
    skills=skill_lists,
    traits=_tuples_of(st.builds(Trait, name=words, description=texts, type=texts, value=json_values)),
    resources=_tuples_of(st.builds(Resource, words, words, texts, st.sampled_from(["mesh", "exposed"]))),
    prompts=_tuples_of(
        st.builds(Prompt, words, _tuples_of(st.builds(PromptArgument, words, texts, st.booleans())))
    ),
    topics=_tuples_of(texts),
    scores=st.none() | st.dictionaries(texts, st.floats(0, 1), max_size=3),
    context_window=st.none() | st.integers(0, 10**7),
    languages=_tuples_of(texts),
    labels=st.dictionaries(texts, texts, max_size=3),
    annotations=st.dictionaries(texts, texts, max_size=3),
    security=st.none() | json_objects,
)

_TOKEN = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_.!#$%&'*+^`|~"
_HEX = "0123456789abcdef"


def _hex(length: int) -> st.SearchStrategy[str]:
    return st.text(_HEX, min_size=length, max_size=length).filter(lambda digits: digits.strip("0") != "")


allowances = st.builds(
    Allowance, st.none() | st.integers(0, 10**12), st.none() | st.integers(0, 10**12)
).filter(any)
"""What a chain may still spend, with a limit above 0."""

unknown_fields = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=6), st.integers(0, 2**53) | texts | st.lists(texts, max_size=2)
).filter(lambda fields: not {"at", "kid", "mac"} & fields.keys())
"""Fields of the trace of a newer release."""

extensions = st.builds(TraceExtension, st.none() | allowances, unknown_fields).filter(
    lambda extension: bool(extension.allowance or extension.others)
)

traceparents = st.builds("00-{}-{}-0{}".format, _hex(32), _hex(16), st.sampled_from("01"))
hops = st.builds(Hop, texts, texts)


@st.composite
def traces(draw: st.DrawFn) -> TraceContext:
    """A trace as a guard of ours would send it."""
    traceparent = draw(st.none() | traceparents)
    mac = draw(st.none() | words)
    return TraceContext(
        id=draw(st.text("abcXYZ019._-", min_size=1, max_size=128)),
        depth=draw(st.integers(0, 10_000)),
        path=tuple(draw(st.lists(hops, max_size=6))),
        via=tuple(draw(st.lists(words, max_size=3))),
        calls_left=draw(st.none() | st.integers(0, 10**9)),
        seconds_left=draw(st.none() | st.floats(0, 10**6)),
        traceparent=traceparent,
        tracestate=draw(st.none() | st.just("vendor=1,other=two")) if traceparent else None,
        baggage=draw(st.dictionaries(st.text(_TOKEN, min_size=1, max_size=8), texts, max_size=3)),
        kid=draw(words) if mac else None,
        mac=mac,
        sent_at_ms=draw(st.integers(0, 2**53 - 1)) if mac else None,
        extension=draw(st.none() | extensions),
    )
