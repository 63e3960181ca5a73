"""Responses as answers, and as errors that say what the API said."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from retinue.core.call import Answer
from retinue.core.errors import AgentUnreachableError, BusyError, RemoteFaultError
from retinue.openapi.codec.operations import Operation
from retinue.openapi.codec.responses import MAX_ERROR_BODY_BYTES, META_KEY, read_response
from tests.openapi.documents import SERVER, api_of

JSON = {"content-type": "application/json"}


def _operation(**responses: Any) -> Operation:
    return api_of({"responses": responses or {"200": {"content": {"application/json": {}}}}}).operations[0]


def _read(status: int, headers: dict[str, str], body: bytes, operation: Operation | None = None) -> Answer:
    return read_response(operation or _operation(), "things", status, headers, body)


def _fail(status: int, headers: dict[str, str], body: bytes) -> RemoteFaultError:
    with pytest.raises(RemoteFaultError) as failed:
        _read(status, headers, body)
    return failed.value


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/hal+json; charset=utf-8", "text/json"]
)
def test_json_is_the_value(content_type: str) -> None:
    assert _read(200, {"content-type": content_type}, b'{"a": [1]}').value == {"a": [1]}


def test_text_is_a_string_in_its_own_charset() -> None:
    assert _read(200, {"content-type": "text/plain; charset=latin-1"}, b"\xe9").value == "é"
    assert _read(200, {"content-type": "application/xml; charset=nonsense"}, b"<a/>").value == "<a/>"


def test_other_content_is_base64_text_and_a_part() -> None:
    answer = _read(200, {"content-type": "image/png"}, b"\x89PNG")
    assert answer.value == {"mimeType": "image/png", "size": 4, "blob": "iVBORw=="}
    assert [(part.kind, part.mime) for part in answer.parts] == [("image", "image/png")]
    assert _read(200, {"content-type": "audio/wav"}, b"x").parts[0].kind == "audio"
    assert _read(200, {}, b"\x00").parts[0].mime == "application/octet-stream"


def test_a_compressed_body_is_read_up_to_a_limit() -> None:
    packed = {**JSON, "content-encoding": "gzip"}
    assert _read(200, packed, gzip.compress(b'{"a": 1}')).value == {"a": 1}
    assert "damaged" in _fail(200, packed, b"no gzip").message
    large = gzip.compress(b"[" + b" " * 10_000 + b"]")
    with pytest.raises(RemoteFaultError) as failed:
        read_response(_operation(), "things", 200, packed, large, max_decompressed_bytes=1_000)
    assert failed.value.remote_type == "too_large"


@pytest.mark.parametrize("status", [200, 204])
def test_no_content_is_null(status: int) -> None:
    assert _read(status, JSON, b"").value is None


def test_the_next_page_stays_visible() -> None:
    link = f'<{SERVER}/things?page=1>; rel="prev", <{SERVER}/things?page=3>; rel="next"'
    answer = _read(200, {**JSON, "link": link, "x-total-count": "99", "set-cookie": "secret"}, b"[]")
    assert answer.warnings == (f"there are more results: {SERVER}/things?page=3",)
    assert answer.meta[META_KEY] == {"status": 200, "headers": {"link": link, "x-total-count": "99"}}


def test_a_redirect_is_an_answer_where_the_document_describes_it() -> None:
    operation = _operation(**{"302": {"description": "The file."}})
    answer = _read(302, {"location": "https://files.example.com/1"}, b"", operation)
    assert answer.value == {"status": 302, "location": "https://files.example.com/1"}
    error = _fail(301, {"location": "https://new.example.com"}, b"")
    assert "https://new.example.com" in error.remedy


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"message": "No such\\n thing"}', "No such thing"),
        (b'{"error": {"code": 7, "message": "No such thing"}}', "No such thing"),
        (b'{"errors": [{"detail": "No such thing"}]}', "No such thing"),
        (b'{"title": "No such thing", "status": 404}', "No such thing"),
        (b'{"error": "No such thing"}', "No such thing"),
    ],
)
def test_an_error_says_what_the_api_says(body: bytes, detail: str) -> None:
    error = _fail(404, JSON, body)
    assert error.message == f"things answered 404 Not Found to GET /things: {detail}"
    assert (error.remote_type, error.fault_data["status"]) == ("not_found", 404)
    assert error.fault_data["body"]
    assert error.remedy == "check the ids in the arguments"


def test_a_text_is_told_and_a_page_of_html_is_not() -> None:
    assert _fail(500, {"content-type": "text/plain"}, b"out of cheese").message.endswith(": out of cheese")
    page = b"<html><body>Sorry</body></html>"
    assert _fail(500, {"content-type": "text/html"}, page).message.endswith("to GET /things")
    assert _fail(500, {"content-type": "image/png"}, b"\x89").message.endswith("to GET /things")


def test_a_long_body_is_cut_and_a_token_in_it_hidden() -> None:
    error = _fail(400, {"content-type": "text/plain"}, b"Bearer abcdefghijklmnopqrstuvwxyz " + b"x" * 100_000)
    assert "abcdefghij" not in error.message
    assert len(error.message) < 400
    assert len(error.fault_data["body"]) < MAX_ERROR_BODY_BYTES + 100


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, -32602, "remote_error"),
        (401, -32603, "not_authenticated"),
        (403, -32603, "not_allowed"),
        (422, -32602, "remote_error"),
        (500, -32603, "remote_error"),
        (599, -32603, "remote_error"),
    ],
)
def test_a_status_decides_the_kind_of_the_error(status: int, code: int, kind: str) -> None:
    error = _fail(status, JSON, b'{"message": "no"}')
    assert (error.code, error.remote_type) == (code, kind)


def test_a_rate_limit_says_when_to_try_again() -> None:
    with pytest.raises(BusyError) as busy:
        _read(429, {**JSON, "retry-after": "7"}, b'{"message": "slow down"}')
    assert busy.value.retry_after_s == 7
    assert "slow down" in busy.value.message
    with pytest.raises(BusyError) as busy:
        _read(429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"")
    assert busy.value.retry_after_s == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_fails_means_that_the_api_may_have_run_the_call(status: int) -> None:
    with pytest.raises(AgentUnreachableError) as lost:
        _read(status, {"content-type": "text/html"}, b"<html>")
    assert lost.value.sent
    assert str(status) in lost.value.message


@pytest.mark.parametrize("body", [b"{", b"[" * 200 + b"]" * 200, b"\xff"])
def test_json_that_cannot_be_read_is_an_error_of_the_api(body: bytes) -> None:
    error = _fail(200, JSON, body)
    assert error.remote_type == "output_validation_error"
    assert "JSON" in error.message
