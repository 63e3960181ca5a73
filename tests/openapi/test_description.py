"""The OpenAPI document of skills, by hand: names, references, bounds, and that a reader gets them back."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from retinue.authoring.agent import Agent
from retinue.core.call import LOCAL
from retinue.core.record import AgentRecord, Endpoint, Example, Hints, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access
from retinue.openapi.codec import description
from retinue.openapi.codec.api import parse_api
from retinue.openapi.codec.components import embed_schema
from retinue.openapi.codec.description import DocumentBuilder, Frame
from retinue.openapi.codec.known_routes import KNOWN, list_operations
from retinue.openapi.server import DocumentEndpoint
from retinue.parts.shown_agents import MeshAgents
from tests.runtime.composition.golden import FOLDER

FRAME = Frame("hub", "1.0", "A hub.", "http://127.0.0.1:9000", anonymous=True)
URL = "http://127.0.0.1:9000"
TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/tree",
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "$ref": {"type": "string"}},
    "required": ["root"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                "kind": {"enum": ["a", {"$ref": "x"}]},
            },
        }
    },
}


def build(*skills: Skill, agent: str = "echo", named: bool = True) -> Any:
    builder = DocumentBuilder()
    for skill in skills:
        assert builder.add_skill(skill, agent, f"/agents/{agent}", named=named)
    document = orjson.loads(builder.render(FRAME))
    OpenAPIV31SpecValidator(document).validate()
    return document


def test_definitions_become_components_and_nothing_else_of_a_schema_changes() -> None:
    components: dict[str, Any] = {}
    embedded = embed_schema(TREE, "grow.input", components)
    node = "#/components/schemas/grow.input.Node"
    assert embedded == {
        "type": "object",
        "properties": {"root": {"$ref": node}, "$ref": {"type": "string"}},
        "required": ["root"],
    }
    assert components == {
        "grow.input.Node": {
            "type": "object",
            "properties": {
                "children": {"type": "array", "items": {"$ref": node}},
                "kind": {"enum": ["a", {"$ref": "x"}]},
            },
        }
    }


def test_a_schema_that_refers_to_itself_is_a_component_and_a_reference_out_of_it_accepts_anything() -> None:
    components: dict[str, Any] = {}
    schema = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#"},
            "same": {"$ref": "#/properties/next"},
            "far": {"$ref": "https://example.com/x.json"},
            "gone": {"$ref": "#/$defs/missing"},
        },
    }
    assert embed_schema(schema, "a b", components) == {"$ref": "#/components/schemas/a_b"}
    assert components["a_b"]["properties"] == {
        "next": {"$ref": "#/components/schemas/a_b"},
        "same": {"$ref": "#/components/schemas/a_b/properties/next"},
        "far": {},
        "gone": {},
    }


def test_two_definitions_never_share_a_name() -> None:
    components: dict[str, Any] = {}
    for _ in range(2):
        embed_schema(
            {"$defs": {"A b": {"type": "string"}, "A_b": {"type": "integer"}}, "$ref": "#/$defs/A b"},
            "x",
            components,
        )
    assert [*components] == ["x.A_b", "x.A_b_2", "x.A_b_3", "x.A_b_4"]


def test_a_skill_is_an_operation_with_its_schemas_example_and_token() -> None:
    skill = Skill(
        "grow",
        "Grows a tree.",
        "Grow",
        input_schema=TREE,
        output_schema={"type": "integer"},
        examples=(Example(text="grow"), Example(arguments={"root": {"children": []}})),
        hints=Hints(runs_code=True),
    )
    document = build(skill)
    operation = document["paths"]["/agents/echo/tools/call/grow"]["post"]
    assert (operation["operationId"], operation["tags"]) == ("echo__grow", ["echo"])
    assert (operation["summary"], operation["description"]) == ("Grow", "Grows a tree.")
    assert operation["security"] == [{"bearer": []}]
    assert operation["requestBody"]["required"] is True
    assert operation["requestBody"]["content"]["application/json"]["example"] == {"root": {"children": []}}
    result = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert result["properties"] == {"result": {"type": "integer"}}
    assert {*operation["responses"]} == {"200", "4XX", "5XX"}
    refused = document["components"]["responses"]["Refused"]["description"]
    assert "404: " in refused
    assert "unknown_skill" in refused


def test_ids_that_no_generator_accepts_are_made_safe_and_stay_unique() -> None:
    document = build(
        Skill("fs:read_file"), Skill("fs/read_file"), Skill("x" * 90), Skill("lists what?"), named=False
    )
    ids = [item["post"]["operationId"] for item in document["paths"].values()]
    assert ids[0] == "fs_read_file"
    assert ids[1].startswith("fs_read_file_")
    assert [len(name) for name in ids[1:3]] == [21, 64]
    assert "/agents/echo/tools/call/fs:read_file" in document["paths"]
    assert "/agents/echo/tools/call/lists%20what%3F" in document["paths"]


def test_an_import_of_the_document_gives_the_skills_back() -> None:
    skills = (Skill("grow", "Grows a tree.", input_schema=TREE), Skill("read_all"))
    api = parse_api(build(*skills, named=False), "echo")
    assert [skill.id for skill in api.skills] == ["grow", "read_all"]
    schema = api.skills[0].input_schema
    assert schema is not None
    assert schema["properties"]["body"]["required"] == ["root"]
    assert api.notes == ()


def read_lines(name: str) -> list[str]:
    """The lines of a file of what the processes show."""
    return (FOLDER / name).read_text("utf-8").splitlines()


@pytest.mark.parametrize("kind", ["hub", "agent"])
def test_every_described_route_is_one_that_the_process_declares(kind: str) -> None:
    declared = [
        (method, path)
        for path, methods in (line.split("  ") for line in read_lines(f"routes-{kind}.txt"))
        for method in methods.split()
    ]
    described = {(method, path) for method, path, _ in list_operations(declared)}
    expected = {key for key in KNOWN if kind == "hub" or not key[1].startswith("/agents/")}
    assert described == expected - ({("post", "/search")} if kind == "agent" else set())


def test_a_file_is_described_as_bytes() -> None:
    operations = {
        operation["operationId"]: operation
        for _, _, operation in list_operations([("POST", "/artifacts"), ("GET", "/artifacts/{digest}")])
    }
    saved, read = operations["save_artifact"], operations["read_artifact"]
    schema = {"type": "string", "format": "binary"}
    assert saved["requestBody"]["content"] == {"application/octet-stream": {"schema": schema}}
    assert [*saved["responses"]["201"]["content"]] == ["application/json"]
    assert read["responses"]["200"]["content"] == {"application/octet-stream": {"schema": schema}}
    assert [parameter["name"] for parameter in read["parameters"]] == ["digest"]


def make_mesh(agents: int) -> tuple[MeshAgents, Directory]:
    directory = Directory(MemoryListings(), [])
    for number in range(agents):
        name = f"agent-{number:04}"
        skills = tuple(
            Skill(f"skill_{at}", f"Does the work {at}.", input_schema=TREE, visibility="exposed")
            for at in range(3)
        )
        record = AgentRecord(name, version="1.0.0", endpoints=(Endpoint("execute", URL),), skills=skills)
        directory.upsert(Listing(record, "test", name))
    return MeshAgents(Agent("retinue", version="1.0.0"), Access(), URL, directory), directory


@pytest.fixture
def _without_collection() -> Iterator[None]:
    """No garbage collection, which takes long among the objects of all tests of a worker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collection")
def test_the_document_of_a_thousand_agents_is_bounded_and_built_in_slices_of_20_ms() -> None:
    shown, _ = make_mesh(1_000)
    endpoint = DocumentEndpoint(shown, Access(), lambda: ())
    building = endpoint.build(LOCAL, URL)
    slices: list[float] = []
    document = b""
    while not document:
        began = time.thread_time()
        try:
            building.send(None)
        except StopIteration as end:
            document = end.value
        slices.append(time.thread_time() - began)
    assert len(slices) > 20
    assert max(slices) < 0.02
    content = orjson.loads(document)
    assert len(content["paths"]) == description.MAX_OPERATIONS
    assert "further agents are not in it" in content["info"]["description"]
    assert "/agents/NAME/openapi.json" in content["info"]["description"]


def test_what_has_no_place_in_a_document_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "MAX_OPERATIONS", 2)
    builder = DocumentBuilder()
    added = [builder.add_skill(Skill(name), "x", "/agents/x", named=True) for name in ("a", "b", "c")]
    assert added == [True, True, False]
    text = description.list_left_out(["x"], more=False)
    assert text.startswith("The document is cut at 2 operations: x are not in it.")
