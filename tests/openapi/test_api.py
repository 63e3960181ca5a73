"""Documents as APIs: operations, names, servers, notes."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError, TooLargeError
from retinue.mesh.schema.checks import check_skill, compile_schema
from retinue.openapi.codec.api import Api, parse_api
from retinue.openapi.codec.operations import Operation
from retinue.openapi.codec.reader import read_document
from tests.openapi.documents import NOTES, PETS_YAML, SERVER, api_of, document


@pytest.fixture(scope="module")
def pets() -> Api:
    return parse_api(read_document(PETS_YAML.encode(), "pets.yaml"), "pets")


@pytest.fixture(scope="module")
def notes() -> Api:
    return parse_api(NOTES, "notes", url="https://notes.example.com/docs/openapi.json")


def _get(api: Api, skill_id: str) -> Operation:
    found = api.find(skill_id)
    assert found is not None
    return found


def test_every_operation_becomes_a_skill_of_a_safe_name_that_keeps_its_own(pets: Api) -> None:
    assert [one.skill.id for one in pets.operations] == [
        "listPets", "pets_add", "getPet", "delete_pets_petId", "setPhoto"
    ]  # fmt: skip
    assert pets.skills[1].similes == ("pets/add",)
    assert (pets.title, pets.version, pets.description) == ("Pets", "1.2.0", "A store of pets.")
    assert not pets.notes
    for skill in pets.skills:
        check_skill(skill)


def test_a_skill_says_what_the_operation_says(pets: Api) -> None:
    listing = _get(pets, "listPets").skill
    assert (listing.title, listing.description, listing.tags) == ("List pets", "List pets", ("pet",))
    assert listing.hints.read_only
    assert listing.hints.open_world
    deleting = _get(pets, "delete_pets_petId").skill
    assert deleting.description == "DELETE /pets/{petId}"
    assert (deleting.hints.destructive, deleting.hints.idempotent) == (True, True)


def test_parameters_of_the_path_are_inherited_and_overridden(pets: Api) -> None:
    schema = _get(pets, "listPets").skill.input_schema or {}
    assert list(schema["properties"]) == ["X-Store", "status", "limit", "cursor"]
    assert schema["properties"]["cursor"] == {"type": "string", "description": "From the page before."}
    assert schema["properties"]["limit"]["exclusiveMinimum"] == 0
    assert (_get(pets, "getPet").skill.input_schema or {})["properties"] == {
        "petId": {"type": "string", "description": "The id."}
    }
    assert (_get(pets, "delete_pets_petId").skill.input_schema or {})["properties"]["petId"][
        "type"
    ] == "integer"


def test_an_unknown_argument_does_not_fit_the_schema(pets: Api) -> None:
    check = compile_schema(_get(pets, "getPet").skill.input_schema or {}, "test")
    assert check.is_valid({"petId": "1"})
    assert not check.is_valid({"petid": "1"})


def test_the_output_is_the_first_success_with_json_or_null_where_one_is_empty(pets: Api) -> None:
    listing = _get(pets, "listPets").skill.output_schema or {}
    assert (listing["type"], listing["items"]) == ("array", {"$ref": "#/$defs/Pet"})
    assert list(listing["$defs"]) == ["Pet", "Owner"]
    one = _get(pets, "getPet").skill.output_schema or {}
    assert one["anyOf"] == [{"$ref": "#/$defs/Pet"}, {"type": "null"}]
    assert _get(pets, "setPhoto").skill.output_schema is None


def test_a_circular_schema_with_nullable_parts_checks_values(pets: Api) -> None:
    check = compile_schema(_get(pets, "pets_add").skill.input_schema or {}, "test")
    pet = {"name": "Rex", "status": None, "owner": None, "children": [{"name": "Rover", "born": None}]}
    assert check.is_valid({"body": pet})
    assert not check.is_valid({"body": {**pet, "children": [{"status": "lost"}]}})
    assert not check.is_valid({})


def test_a_body_is_json_first_then_a_form_then_multipart(notes: Api) -> None:
    kinds = {one.skill.id: one.body.kind for one in notes.operations if one.body is not None}
    assert kinds == {"patch_notes_id": "json", "upload": "multipart", "send": "form"}


def test_files_are_found_through_references_unions_and_arrays(notes: Api) -> None:
    body = _get(notes, "upload").body
    assert body is not None
    assert body.files == {"file", "extra"}


def test_a_name_in_two_places_gets_its_place_as_a_prefix(notes: Api) -> None:
    schema = _get(notes, "patch_notes_id").skill.input_schema or {}
    assert list(schema["properties"]) == ["path_id", "query_id", "query_body", "body"]
    assert schema["properties"]["query_id"]["description"] == "Sent as the query parameter id."
    assert schema["required"] == ["path_id"]


def test_an_unsafe_name_is_replaced_and_the_original_told(notes: Api) -> None:
    schema = _get(notes, "notes-search").skill.input_schema or {}
    names = ["filter", "Created_lt", "Created_gt", "ids", "sort", "mode"]
    assert list(schema["properties"]) == names
    assert "Created<" in schema["properties"]["Created_lt"]["description"]
    assert any("Host" in note and "connection" in note for note in notes.notes)


def test_names_that_become_equal_stay_distinct() -> None:
    parameters: list[Any] = [
        {"name": name, "in": "query", "schema": {}} for name in ("a b", "a-b", "a/b", "a_b", "é")
    ]
    schema = api_of({"parameters": parameters}).skills[0].input_schema or {}
    assert list(schema["properties"]) == ["a_b", "a-b", "a_b_2", "a_b_3", "query"]


def test_ids_of_skills_are_unique_and_short_whatever_the_document_says() -> None:
    long = "x" * 100
    ids: list[str | None] = ["same", "same", "a.b", "a/b", "a_b", None, long, "", "é"]
    paths = {f"/p{n}": {"get": {} if one is None else {"operationId": one}} for n, one in enumerate(ids)}
    names = [skill.id for skill in parse_api(document(paths), "x").skills]
    assert len(set(names)) == len(ids)
    assert all(0 < len(name) <= 64 for name in names)
    assert names[4:6] == ["a_b", "get_p5"]
    backwards = parse_api(document(dict(reversed(paths.items()))), "x").skills
    assert {skill.id for skill in backwards} == set(names)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({"url": "https://a.example.com/v1/"}, "https://a.example.com/v1"),
        ({"url": "/v2"}, "https://docs.example.com/v2"),
        ({"url": "../v3"}, "https://docs.example.com/v3"),
        ({"url": "//b.example.com"}, "https://b.example.com"),
        ({"url": "https://{h}.example.com", "variables": {"h": {"default": "eu"}}}, "https://eu.example.com"),
        ({"url": "https://{zone}.example.com"}, "https://us.example.com"),
    ],
)
def test_servers_are_absolute_and_their_variables_filled(server: dict[str, Any], expected: str) -> None:
    found = {**document({"/a": {"get": {}}}), "servers": [server]}
    api = parse_api(found, "x", url="https://docs.example.com/api/openapi.json", variables={"zone": "us"})
    assert api.servers == (expected,)


@pytest.mark.parametrize(
    "server",
    [
        {"url": "/relative"},
        {"url": "ftp://example.com"},
        {"url": "https://user:secret@example.com"},
        {"url": "https://example.com/?key=1"},
        {"url": "https://{missing}.example.com"},
        {"url": "https://[::1"},
        {"url": "https://example.com:99999"},
        {"url": 7},
        "https://example.com",
    ],
)
def test_a_server_that_cannot_be_called_is_refused(server: Any) -> None:
    with pytest.raises(InvalidSettingError, match="server") as refused:
        parse_api({**document({"/a": {"get": {}}}), "servers": [server]}, "x")
    assert refused.value.remedy


def test_a_variable_outside_its_choices_is_refused() -> None:
    server = {"url": "https://{r}.example.com", "variables": {"r": {"default": "eu", "enum": ["eu", "us"]}}}
    found = {**document({"/a": {"get": {}}}), "servers": [server]}
    with pytest.raises(InvalidSettingError, match="eu, us"):
        parse_api(found, "x", variables={"r": "moon"})


def test_paths_and_operations_have_servers_of_their_own_and_one_given_by_hand_replaces_all() -> None:
    found = document(
        {
            "/a": {"get": {"servers": [{"url": "https://up.example.com"}]}, "post": {}},
            "/b": {"servers": [{"url": "https://b.example.com"}], "get": {}},
        }
    )
    assert parse_api(found, "x").servers == ("https://up.example.com", SERVER, "https://b.example.com")
    assert parse_api(found, "x", server="http://127.0.0.1:1/").servers == ("http://127.0.0.1:1",)


def test_a_broken_output_schema_is_dropped_with_a_note() -> None:
    content = {"application/json": {"schema": {"oneOf": {"a": 1}}}}
    api = api_of({"responses": {"200": {"content": content}}})
    assert api.skills[0].output_schema is None
    assert "op: output schema dropped: it is broken: oneOf: an object, not a list" in api.notes[0]


def test_a_broken_input_schema_costs_that_argument_only() -> None:
    parameters = [
        {"name": "bad", "in": "query", "description": "d", "schema": {"type": "any"}},
        {"name": "good", "in": "query", "schema": {"type": "string"}},
    ]
    api = api_of({"parameters": parameters})
    assert (api.skills[0].input_schema or {})["properties"] == {
        "bad": {"description": "d"},
        "good": {"type": "string"},
    }
    assert "argument bad accepts anything" in api.notes[0]


def test_too_large_schemas_are_dropped_or_cut_and_still_compile() -> None:
    big = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "description": "x" * 700} for n in range(100)},
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Big"}}}
    operation = {"requestBody": {"content": content}, "responses": {"200": {"content": content}}}
    api = api_of(operation, method="post", schemas={"Big": big})
    check_skill(api.skills[0])
    assert api.skills[0].output_schema is None
    assert len(api.notes) == 2
    assert "lost the texts of its parts" in api.notes[0]


def test_a_component_that_alone_is_too_large_accepts_anything_with_one_note() -> None:
    big = {"enum": ["x" * 1000] * 600}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Big"}}}
    operation = {"requestBody": {"content": content}, "responses": {"200": {"content": content}}}
    api = api_of(operation, method="post", schemas={"Big": big})
    assert (api.skills[0].input_schema or {})["$defs"] == {"Big": True}
    assert api.notes == ("components/schemas/Big accepts anything: it has over 524,288 bytes",)


def test_a_reference_to_another_file_costs_what_it_stands_for_and_names_the_remedy() -> None:
    outside = {"$ref": "other.yaml#/x"}
    content = {"application/json": {"schema": outside}}
    found = document(
        {
            "/item": outside,
            "/operation": {"get": outside},
            "/parameter": {"get": {"parameters": [outside]}},
            "/schema": {
                "post": {"requestBody": {"content": content}, "responses": {"200": {"content": content}}}
            },
        }
    )
    api = parse_api(found, "x")
    assert [one.path for one in api.operations] == ["/schema"]
    assert len(api.notes) == 5
    assert all("other.yaml" in note and "bundle" in note for note in api.notes)
    del found["paths"]["/schema"]
    with pytest.raises(InvalidSettingError, match=r"other\.yaml"):
        parse_api(found, "x")


def test_a_path_variable_without_a_parameter_is_an_argument_all_the_same() -> None:
    api = api_of({}, path="/a/{id}/b/{id}/{other}")
    schema = api.skills[0].input_schema or {}
    assert schema["required"] == ["id", "other"]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "openapi: missing"),
        ({"openapi": 3}, "openapi: a number"),
        ({"openapi": "4.0.0"}, "openapi: '4.0.0'"),
        ({"swagger": "2.0"}, "swagger: it is of version 2"),
        (document({}), "no operations"),
        ({"openapi": "3.1.0", "paths": []}, "no operations"),
        ({"openapi": "3.1.0", "paths": {"/a": {"get": None}}}, "no operations"),
    ],
)
def test_a_document_without_operations_or_of_another_version_is_refused(found: Any, problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem) as refused:
        parse_api(found, "x", source="spec.json")
    assert refused.value.message.startswith("spec.json")
    assert refused.value.remedy


def test_a_later_version_is_read_as_3_1_with_a_note() -> None:
    api = parse_api({**document({"/a": {"get": {}}}), "openapi": "3.2.0"}, "x")
    assert api.notes == ("version 3.2.0 is read as 3.1",)


def test_too_many_operations_are_refused() -> None:
    with pytest.raises(TooLargeError, match="operations"):
        parse_api(document({f"/{n}": {"get": {}} for n in range(3)}), "x", max_operations=2)
