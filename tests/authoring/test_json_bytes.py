"""Bytes arrive decoded from base64, and leave encoded."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Base64UrlBytes, Field

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidParametersError

BASE64 = {"type": "string", "contentEncoding": "base64"}


async def test_bytes_of_parameters_are_decoded_and_results_encoded() -> None:
    agent = Agent("files")

    @agent.skill
    async def turn(data: bytes, more: list[bytes] | None = None) -> bytes:
        assert type(data) is bytes
        return b"".join([data, *(more or [])])[::-1]

    (skill,) = agent.skills
    assert skill.input_schema is not None
    assert skill.input_schema["properties"]["data"] == BASE64
    assert skill.input_schema["properties"]["more"]["anyOf"][0] == {"type": "array", "items": BASE64}
    assert skill.output_schema == BASE64
    assert await agent.call("turn", {"data": "/wA=", "more": ["YQ=="]}) == "YQD/"
    with pytest.raises(InvalidParametersError, match="data"):
        await agent.call("turn", {"data": "no base64!"})


async def test_bytes_with_further_facts_keep_them_and_another_encoding_stays() -> None:
    agent = Agent("files")

    @agent.skill
    async def count(
        data: Annotated[bytes, Field(description="A file")], url: Base64UrlBytes, given: bytes = b"a"
    ) -> dict[str, bytes]:
        return {"data": data, "url": url, "given": given}

    (skill,) = agent.skills
    assert skill.input_schema is not None
    assert skill.input_schema["properties"]["data"] == BASE64 | {"description": "A file"}
    assert "contentEncoding" not in skill.input_schema["properties"]["url"]
    result = await agent.call("count", {"data": "aGk=", "url": "_wA="})
    assert result == {"data": "aGk=", "url": "/wA=", "given": "YQ=="}
