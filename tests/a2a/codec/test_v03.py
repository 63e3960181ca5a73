"""A2A 0.3 ↔ 1.x, against the conversions of the SDK."""

from __future__ import annotations

import base64
from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as old_types
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from retinue.a2a.codec import v03
from retinue.a2a.codec.tasks import COMPLETED, INPUT_REQUIRED, WORKING

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
ids = st.text("abc-123", min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts.filter(bool), values, min_size=1, max_size=3)
files = st.fixed_dictionaries(
    {"raw": st.binary(min_size=1, max_size=9).map(lambda data: base64.b64encode(data).decode())},
    optional={"filename": ids, "mediaType": st.sampled_from(["text/plain", "image/png"])},
)
links = st.fixed_dictionaries({"url": ids}, optional={"filename": ids, "mediaType": st.just("text/plain")})
parts = st.fixed_dictionaries({"text": texts}) | st.fixed_dictionaries({"data": objects}) | files | links
messages = st.fixed_dictionaries(
    {
        "messageId": ids,
        "role": st.sampled_from(["ROLE_USER", "ROLE_AGENT"]),
        "parts": st.lists(parts, min_size=1, max_size=3),
    },
    optional={"contextId": ids, "taskId": ids, "metadata": objects},
)
states = st.sampled_from([WORKING, COMPLETED, INPUT_REQUIRED, "TASK_STATE_FAILED", "TASK_STATE_CANCELED"])
statuses = st.fixed_dictionaries(
    {"state": states, "timestamp": st.just("2026-01-02T03:04:05.678Z")}, optional={"message": messages}
)
artifacts = st.fixed_dictionaries(
    {"artifactId": ids, "name": ids, "parts": st.lists(parts, min_size=1, max_size=2)}
)
tasks = st.fixed_dictionaries(
    {"id": ids, "contextId": ids, "status": statuses},
    optional={
        "history": st.lists(messages, min_size=1, max_size=2),
        "artifacts": st.lists(artifacts, min_size=1, max_size=2),
    },
)


@given(message=messages)
def test_a_message_goes_to_0_3_and_back(message: dict[str, Any]) -> None:
    assert v03.upgrade_message(v03.downgrade_message(message)) == message


@given(message=messages)
def test_the_sdk_reads_our_message_of_0_3_as_the_one_of_1_x(message: dict[str, Any]) -> None:
    old = old_types.Message.model_validate(v03.downgrade_message(message))
    assert MessageToDict(conversions.to_core_message(old)) == MessageToDict(
        ParseDict(message, types.Message())
    )


@given(task=tasks)
def test_the_sdk_reads_our_task_of_0_3_as_the_one_of_1_x(task: dict[str, Any]) -> None:
    old = old_types.Task.model_validate(v03.downgrade_task(task))
    assert MessageToDict(conversions.to_core_task(old)) == MessageToDict(ParseDict(task, types.Task()))


@given(message=messages)
def test_we_read_the_sdks_message_of_0_3(message: dict[str, Any]) -> None:
    core = ParseDict(message, types.Message())
    old = conversions.to_compat_message(core).model_dump(mode="json", by_alias=True, exclude_none=True)
    upgraded = ParseDict(v03.upgrade_message(old), types.Message())
    assert MessageToDict(upgraded) == MessageToDict(core)


def test_data_that_is_no_object_is_wrapped_for_0_3() -> None:
    assert v03.downgrade_part({"data": [1, 2]}) == {"kind": "data", "data": {"value": [1, 2]}}


@given(params=st.recursive(values, lambda inner: st.dictionaries(texts, inner), max_leaves=4))
def test_whatever_a_client_of_0_3_sends_is_read_without_an_exception(params: Any) -> None:
    for method in set(v03.METHODS.values()):
        v03.upgrade_params(method, params)
        v03.upgrade_params(
            method, {"message": params, "configuration": params, "pushNotificationConfig": params}
        )
        v03.upgrade_params(
            method, {"message": {"role": params, "parts": [params, {"kind": "file", "file": params}]}}
        )
