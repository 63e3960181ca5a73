"""Arguments as requests: urls, headers, bodies."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest

from retinue.core.errors import InvalidParametersError, TooLargeError
from retinue.openapi.codec.api import Api, parse_api
from retinue.openapi.codec.reader import read_document
from retinue.openapi.codec.requests import HttpRequest, render_request
from retinue.openapi.codec.security import RequestCredentials
from tests.openapi.documents import NOTES, PETS_YAML, SERVER, api_of

NONE = RequestCredentials({}, {}, {})


@pytest.fixture(scope="module")
def notes() -> Api:
    return parse_api(NOTES, "notes", server=SERVER)


@pytest.fixture(scope="module")
def pets() -> Api:
    return parse_api(read_document(PETS_YAML.encode(), "pets.yaml"), "pets")


def _render(api: Api, skill: str, credentials: RequestCredentials = NONE, /, **arguments: Any) -> HttpRequest:
    operation = api.find(skill)
    assert operation is not None
    return render_request(operation, arguments, credentials)


def _parts(request: HttpRequest) -> list[Message]:
    """The parts of a multipart body, by another parser."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    found = message_from_bytes(head + (request.body or b""))
    assert found.is_multipart()
    return [part for part in found.walk() if part is not found]


def test_arguments_go_where_the_document_says(notes: Api) -> None:
    request = _render(
        notes,
        "notes-search",
        filter={"tag": "a&b"},
        Created_lt="2026-01-01",
        ids=[1, 2],
        sort={"by": ["x"]},
        mode="dark side",
    )
    parts = urlsplit(request.url)
    assert (request.method, f"{parts.scheme}://{parts.netloc}{parts.path}") == ("GET", f"{SERVER}/notes")
    assert parse_qsl(parts.query) == [
        ("filter[tag]", "a&b"),
        ("Created<", "2026-01-01"),
        ("ids[]", "1"),
        ("ids[]", "2"),
        ("sort", '{"by":["x"]}'),
    ]
    assert request.headers["cookie"] == "mode=dark%20side"
    assert request.headers["accept"].startswith("application/json")
    assert request.body is None


def test_the_servers_path_stays_before_the_operations(pets: Api) -> None:
    request = _render(pets, "getPet", petId="a/b c")
    assert request.url == "https://eu.example.com/api/v3/pets/a%2Fb%20c"


def test_arguments_of_one_name_in_two_places_stay_apart(notes: Api) -> None:
    request = _render(notes, "patch_notes_id", path_id="1", query_id="2", query_body="3", body={"text": "é"})
    assert request.url == f"{SERVER}/notes/1?id=2&body=3"
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert orjson.loads(request.body or b"") == {"text": "é"}


def test_a_null_argument_is_not_sent(notes: Api) -> None:
    request = _render(notes, "patch_notes_id", path_id="1", query_id=None, body=None)
    assert (request.url, request.body) == (f"{SERVER}/notes/1", None)
    assert "content-type" not in request.headers


def test_credentials_go_along_and_win_over_arguments(pets: Api) -> None:
    credentials = RequestCredentials({"x-store": "mine"}, {"key": "a&b"}, {"session": "s;1"})
    request = _render(pets, "listPets", credentials, **{"X-Store": "theirs", "status": ["free"]})
    assert request.headers["x-store"] == "mine"
    assert request.url.endswith("/pets?status=free&key=a%26b")
    assert request.headers["cookie"] == "session=s%3B1"
    assert "mine" not in repr(request)


def test_a_form_is_encoded_with_its_styles(notes: Api) -> None:
    body = {"To": "+1 & 2", "Media": ["a", "b"], "meta": {"k": "v"}, "json": {"a": 1}, "none": None}
    request = _render(notes, "send", body=body)
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qsl((request.body or b"").decode()) == [
        ("To", "+1 & 2"),
        ("Media", "a"),
        ("Media", "b"),
        ("meta[k]", "v"),
        ("json", '{"a":1}'),
    ]


def test_a_multipart_body_holds_fields_and_files(notes: Api) -> None:
    body = {
        "purpose": "täst",
        "file": {"blob": "aGkNCi0t", "name": 'a"\r\nb.txt', "mimeType": "text/x-a"},
        "extra": ["aGk=", {"text": "hé"}],
        "facts": {"a": 1},
        "tags": ["x", "y"],
    }
    parts = _parts(_render(notes, "upload", body=body))
    found = [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get("content-type"),
            part.get_payload(decode=True),
        )
        for part in parts
    ]
    assert found == [
        ("purpose", None, None, "täst".encode()),
        ("file", "a%22%0D%0Ab.txt", "text/x-a", b"hi\r\n--"),
        ("extra", "extra", "application/octet-stream", b"hi"),
        ("extra", "extra", "application/octet-stream", "hé".encode()),
        ("facts", None, "application/json", b'{"a":1}'),
        ("tags", None, None, b"x"),
        ("tags", None, None, b"y"),
    ]


def test_a_field_cannot_add_a_header_or_a_part(notes: Api) -> None:
    request = _render(notes, "upload", body={'x"\r\nX-Evil: 1\r\n\r\n': "y", "file": "aGk="})
    assert [len(part.keys()) for part in _parts(request)] == [1, 2]
    with pytest.raises(InvalidParametersError, match="media type"):
        _render(notes, "upload", body={"file": {"text": "", "mimeType": "a/b\r\nX: 1"}})


def test_a_binary_body_is_the_file_itself(pets: Api) -> None:
    request = _render(pets, "setPhoto", petId=7, body="iVBO Rw0=\n")
    assert (request.headers["content-type"], request.body) == ("application/octet-stream", b"\x89PNG\r")
    assert _render(pets, "setPhoto", petId=7, body={"text": "é"}).body == "é".encode()


def test_a_text_body_is_the_text_itself() -> None:
    api = api_of({"requestBody": {"content": {"application/xml": {}}}}, method="post")
    request = _render(api, "op", body="<a/>")
    assert (request.headers["content-type"], request.body) == ("application/xml", b"<a/>")


@pytest.mark.parametrize(
    ("skill", "arguments", "problem"),
    [
        ("upload", {}, "missing required field 'body'"),
        ("upload", {"body": [1]}, "a list: give an object"),
        ("upload", {"body": {"file": "no base64!"}}, "body.file: 10 characters that are no base64"),
        ("upload", {"body": {"file": {"name": "x"}}}, "'blob'"),
        ("upload", {"body": {"file": 7}}, "body.file: a number"),
        ("upload", {"body": {"file": {"text": "", "name": 7}}}, "body.file.name: a number"),
        ("upload", {"body": {"purpose": "\ud800"}}, "body.purpose: it has half of a surrogate"),
        ("patch_notes_id", {"path_id": ".."}, "another path"),
        ("patch_notes_id", {"path_id": None}, "missing required field 'path_id'"),
        ("patch_notes_id", {"path_id": "1", "body": {"a": "\ud800"}}, "body: it is no JSON"),
        ("patch_notes_id", {"path_id": "1", "id": "2"}, "unknown field 'id'"),
        ("send", {"body": "text"}, "a string: give an object"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused_with_the_field(
    notes: Api, skill: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidParametersError) as refused:
        _render(notes, skill, **arguments)
    assert problem in refused.value.message


def test_arguments_that_are_no_object_are_refused(notes: Api) -> None:
    with pytest.raises(InvalidParametersError, match="as an object"):
        render_request(notes.operations[0], [1], NONE)


def test_a_url_that_no_server_reads_is_refused(notes: Api) -> None:
    with pytest.raises(TooLargeError):
        _render(notes, "notes-search", Created_lt="x" * 40_000)
