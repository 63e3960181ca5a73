"""OpenAPI documents in the forms of public ones, written for these tests."""

from __future__ import annotations

from typing import Any

from retinue.openapi.codec.api import Api, parse_api

SERVER = "https://api.example.com/v1"

PETS_YAML = """
openapi: 3.0.4
info: {title: Pets, version: 1.2.0, description: A store of pets.}
servers:
  - url: https://{region}.example.com/api/{version}
    variables:
      region: {default: eu, enum: [eu, us]}
      version: {default: v3}
tags: [{name: pet}]
security:
  - pet_key: []
paths:
  /pets:
    parameters:
      - {name: X-Store, in: header, schema: {type: string}}
    get:
      operationId: listPets
      summary: List pets
      tags: [pet]
      parameters:
        - name: status
          in: query
          schema: {type: array, items: {type: string, enum: [free, sold]}}
        - {name: limit, in: query, schema: {type: integer, minimum: 0, exclusiveMinimum: true, maximum: 100}}
        - $ref: '#/components/parameters/Cursor'
      responses:
        200:
          description: A page of pets.
          content:
            application/xml: {schema: {type: string}}
            application/json:
              schema: {type: array, items: {$ref: '#/components/schemas/Pet'}}
        default: {$ref: '#/components/responses/Failed'}
    post:
      operationId: pets/add
      description: Add a pet.
      requestBody:
        required: true
        content:
          application/xml: {schema: {$ref: '#/components/schemas/Pet'}}
          application/json: {schema: {$ref: '#/components/schemas/Pet'}}
      responses:
        201: {description: Added., content: {application/json: {schema: {$ref: '#/components/schemas/Pet'}}}}
  /pets/{petId}:
    parameters:
      - {name: petId, in: path, required: true, schema: {type: integer, format: int64}}
    get:
      operationId: getPet
      parameters:
        - {name: petId, in: path, required: true, description: The id., schema: {type: string}}
      responses:
        200: {description: One., content: {application/json: {schema: {$ref: '#/components/schemas/Pet'}}}}
        204: {description: None.}
    delete:
      security: [{pet_login: []}, {}]
      responses: {204: {description: Gone.}}
  /pets/{petId}/photo:
    put:
      operationId: setPhoto
      requestBody: {content: {application/octet-stream: {schema: {type: string, format: binary}}}}
      responses: {200: {description: Done., content: {text/plain: {schema: {type: string}}}}}
components:
  parameters:
    Cursor: {name: cursor, in: query, description: From the page before., schema: {type: string}}
  responses:
    Failed: {description: Failed., content: {application/json: {schema: {type: object}}}}
  schemas:
    Pet:
      type: object
      required: [name, id, name]
      properties:
        id: {type: integer, readOnly: true}
        name: {type: string, example: Rex, xml: {attribute: true}}
        password: {type: string, writeOnly: true}
        status: {type: string, nullable: true, enum: [free, sold]}
        born: {type: string, format: date, nullable: true}
        owner: {nullable: true, allOf: [{$ref: '#/components/schemas/Owner'}]}
        children: {type: array, items: {$ref: '#/components/schemas/Pet'}}
      discriminator: {propertyName: kind}
      x-internal: true
    Owner:
      type: object
      properties:
        pets: {type: array, items: {$ref: '#/components/schemas/Pet'}}
        weight: {type: number, minimum: 0, maximum: 9, exclusiveMinimum: false, exclusiveMaximum: true}
  securitySchemes:
    pet_key: {type: apiKey, name: api_key, in: header}
    pet_login: {type: oauth2, flows: {}}
"""

NOTES: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Notes", "version": "2"},
    "servers": [{"url": "/v2"}],
    "security": [{"Bearer": []}],
    "paths": {
        "/notes#search": {
            "get": {
                "operationId": "notes-search",
                "parameters": [
                    {
                        "name": "filter",
                        "in": "query",
                        "style": "deepObject",
                        "explode": True,
                        "schema": {"type": "object", "properties": {"tag": {"type": "string"}}},
                    },
                    {"name": "Created<", "in": "query", "schema": {"type": "string"}},
                    {"name": "Created>", "in": "query", "schema": {"type": "string"}},
                    {
                        "name": "ids[]",
                        "in": "query",
                        "schema": {"type": "array", "items": {"type": "integer"}},
                    },
                    {
                        "name": "sort",
                        "in": "query",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    {"name": "Accept", "in": "header", "required": True, "schema": {"type": "string"}},
                    {"name": "Host", "in": "header", "schema": {"type": "string"}},
                    {"name": "mode", "in": "cookie", "schema": {"type": "string"}},
                ],
                "responses": {"200": {"$ref": "#/components/responses/Page"}},
            }
        },
        "/notes/{id}": {
            "patch": {
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "id", "in": "query", "schema": {"type": "string"}},
                    {"name": "body", "in": "query", "schema": {"type": "string"}},
                ],
                "requestBody": {
                    "content": {
                        "multipart/form-data": {"schema": {"$ref": "#/components/schemas/Upload"}},
                        "application/merge-patch+json": {"schema": {"$ref": "#/components/schemas/Note"}},
                    }
                },
                "responses": {"200": {"description": "", "content": {"application/json": {}}}},
            }
        },
        "/files": {
            "post": {
                "operationId": "upload",
                "requestBody": {
                    "required": True,
                    "content": {
                        "multipart/form-data": {
                            "schema": {"$ref": "#/components/schemas/Upload"},
                            "encoding": {"facts": {"contentType": "application/json"}},
                        }
                    },
                },
                "responses": {"201": {"description": "", "content": {"image/png": {}}}},
            }
        },
        "/messages": {
            "post": {
                "operationId": "send",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {"type": "object", "properties": {"To": {"type": "string"}}},
                            "encoding": {"meta": {"style": "deepObject", "explode": True}},
                        }
                    },
                },
                "responses": {"200": {"description": ""}},
            }
        },
    },
    "components": {
        "responses": {
            "Page": {
                "description": "",
                "content": {
                    "application/json; charset=utf-8": {"schema": {"$ref": "#/components/schemas/Note"}}
                },
            }
        },
        "schemas": {
            "Note": {
                "type": ["object", "null"],
                "properties": {
                    "text": {"type": "string", "examples": ["a"]},
                    "size": {"type": "integer", "maximum": 9223372036854776000},
                    "next": {"$ref": "#/components/schemas/Note", "description": "What follows."},
                    "kind": {"const": "note"},
                },
                "$recursiveAnchor": "yes",
            },
            "Upload": {
                "allOf": [
                    {"type": "object", "properties": {"purpose": {"type": "string"}}},
                    {
                        "type": "object",
                        "required": ["file"],
                        "properties": {
                            "file": {"$ref": "#/components/schemas/Content"},
                            "extra": {"type": "array", "items": {"type": "string", "format": "binary"}},
                            "facts": {"type": "object"},
                            "tags": {"type": "array", "items": {"type": "string"}},
                        },
                    },
                ]
            },
            "Content": {"type": "string", "contentMediaType": "application/octet-stream"},
        },
        "securitySchemes": {
            "Bearer": {"type": "http", "scheme": "Bearer"},
            "Login": {"type": "http", "scheme": "basic"},
            "Old": {"type": "http", "scheme": "digest"},
        },
    },
}


def document(
    paths: dict[str, Any], *, version: str = "3.1.0", schemas: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A document with these paths at `SERVER`."""
    components = {"schemas": schemas or {}}
    return {
        "openapi": version,
        "servers": [{"url": SERVER}],
        "paths": paths,
        "components": components,
        **fields,
    }


def api_of(operation: dict[str, Any], *, path: str = "/things", method: str = "get", **fields: Any) -> Api:
    """The API with one operation, whose id is ``op``."""
    return parse_api(document({path: {method: {"operationId": "op", **operation}}}, **fields), "things")
