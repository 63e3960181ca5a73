"""What the public conformance suites ask for, as a plain server of the MCP SDK, run as a module.

Nothing of Retinue is imported: this is a server of somebody else, at ``/mcp`` of the url that it prints. It
speaks both protocol eras and asks as each does: by requests in a session, in results of 2026-07-28.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import orjson
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

NAME = "plain-server"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

Context = ServerRequestContext[Any, Any]
Asked = types.CallToolRequestParams | types.GetPromptRequestParams
Block = types.TextContent | types.ImageContent | types.AudioContent | types.EmbeddedResource
Said = str | list[Block] | types.InputRequiredResult
Run = Callable[[Context, types.CallToolRequestParams], Awaitable[Said]]


@dataclass(frozen=True)
class Tool:
    """A tool of the server; ``run`` gives a text, content blocks or questions."""

    run: Run
    schema: dict[str, Any]


TOOLS: dict[str, Tool] = {}
bus = InMemorySubscriptionBus()
sessions: dict[str, Any] = {}
"""The last session object of each open session, for notifications."""
comes_and_goes = {"tool": False, "prompt": False}


def tool(schema: dict[str, Any] | None = None) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        TOOLS[run.__name__] = Tool(run, schema or {"type": "object"})
        return run

    return add


def form(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
image = types.ImageContent(data=PNG, mime_type="image/png")


def text(said: str) -> types.TextContent:
    return types.TextContent(text=said)


def embedded(uri: str, said: str, mime: str = "text/plain") -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=said, mime_type=mime))


# content


@tool()
async def test_simple_text(context: Context, params: types.CallToolRequestParams) -> Said:
    return "This is a simple text response for testing."


@tool()
async def test_image_content(context: Context, params: types.CallToolRequestParams) -> Said:
    return [image]


@tool()
async def test_audio_content(context: Context, params: types.CallToolRequestParams) -> Said:
    return [types.AudioContent(data=WAV, mime_type="audio/wav")]


@tool()
async def test_embedded_resource(context: Context, params: types.CallToolRequestParams) -> Said:
    return [embedded("test://embedded-resource", "This is an embedded resource content.")]


@tool()
async def test_multiple_content_types(context: Context, params: types.CallToolRequestParams) -> Said:
    mixed = embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return [text("Multiple content types test:"), image, mixed]


@tool()
async def test_tool_with_logging(context: Context, params: types.CallToolRequestParams) -> Said:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(context, said)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


@tool()
async def test_logging_tool(context: Context, params: types.CallToolRequestParams) -> Said:
    await log(context, "a line")
    return "logged"


async def log(context: Context, said: str) -> None:
    await context.session.send_log_message("info", said, related_request_id=context.request_id)


@tool()
async def test_tool_with_progress(context: Context, params: types.CallToolRequestParams) -> Said:
    for done in (0.0, 50.0, 100.0):
        await context.session.report_progress(done, 100.0)
        await asyncio.sleep(0.05)
    return "done"


@tool()
async def test_error_handling(context: Context, params: types.CallToolRequestParams) -> Said:
    raise RuntimeError("This tool intentionally returns an error for testing")


JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", **form(street=TEXT, city=TEXT), "required": []}},
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool(JSON_SCHEMA)
async def json_schema_2020_12_tool(context: Context, params: types.CallToolRequestParams) -> Said:
    return f"given: {', '.join(params.arguments or {})}"


@tool({"type": "object", "properties": {"region": {**TEXT, "x-mcp-header": "Region"}, "query": TEXT}})
async def test_x_mcp_header(context: Context, params: types.CallToolRequestParams) -> Said:
    return ", ".join((params.arguments or {}).values())


# questions in a session


@tool(form(prompt=TEXT))
async def test_sampling(context: Context, params: types.CallToolRequestParams) -> Said:
    asked = types.SamplingMessage(role="user", content=text((params.arguments or {})["prompt"]))
    found = await context.session.create_message(
        [asked], max_tokens=100, related_request_id=context.request_id
    )
    return f"LLM response: {found.content.text if isinstance(found.content, types.TextContent) else ''}"


@tool(form(message=TEXT))
async def test_elicitation(context: Context, params: types.CallToolRequestParams) -> Said:
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    return f"User response: {await elicit(context, (params.arguments or {})['message'], form(**fields))}"


@tool()
async def test_elicitation_sep1034_defaults(context: Context, params: types.CallToolRequestParams) -> Said:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    asked = {"type": "object", "properties": fields}
    return f"Elicitation completed: {await elicit(context, 'Please check the defaults', asked)}"


@tool()
async def test_elicitation_sep1330_enums(context: Context, params: types.CallToolRequestParams) -> Said:
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    legacy = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", **legacy},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    asked = {"type": "object", "properties": fields}
    return f"Elicitation completed: {await elicit(context, 'Please choose', asked)}"


async def elicit(context: Context, message: str, schema: dict[str, Any]) -> str:
    found = await context.session.elicit_form(message, schema, context.request_id)
    return f"action={found.action}, content={orjson.dumps(found.content).decode()}"


# questions in results


def ask_person(message: str, **fields: Any) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=form(**fields))
    )


def ask_model(prompt: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    )


WHO = ask_person("What is your name?", name=TEXT)
CONFIRM = ask_person("Please confirm", ok={"type": "boolean"})


def answered(params: Asked, key: str, *fields: str) -> Any:
    """The answer under this key, None while there is none that fits."""
    found = (params.input_responses or {}).get(key)
    if fields and not (isinstance(found, types.ElicitResult) and set(fields) <= set(found.content or {})):
        return None
    return found


def ask(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def need(context: Context, capability: str) -> None:
    declared = context.session.client_capabilities
    if declared is None or getattr(declared, capability) is None:
        lacking: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"needs {capability}", lacking)


@tool()
async def test_input_required_result_elicitation(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    need(context, "elicitation")
    found = answered(params, "user_name", "name")
    return ask(user_name=WHO) if found is None else f"Hello, {found.content['name']}!"


@tool()
async def test_streaming_elicitation(context: Context, params: types.CallToolRequestParams) -> Said:
    await context.session.report_progress(0.1, 1.0, "about to ask")
    return await test_input_required_result_elicitation(context, params)


@tool()
async def test_input_required_result_sampling(context: Context, params: types.CallToolRequestParams) -> Said:
    need(context, "sampling")
    found = answered(params, "capital_question")
    return ask(capital_question=ask_model("What is the capital of France?")) if found is None else "told"


@tool()
async def test_input_required_result_list_roots(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    need(context, "roots")
    found = answered(params, "client_roots")
    if found is None:
        return ask(client_roots=types.ListRootsRequest())
    return ", ".join(str(root.uri) for root in found.roots)


@tool()
async def test_input_required_result_request_state(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    if answered(params, "confirm") is None or params.request_state != "asked":
        return ask("asked", confirm=CONFIRM)
    return "state-ok"


@tool()
async def test_input_required_result_tampered_state(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    return await test_input_required_result_request_state(context, params)


@tool()
async def test_input_required_result_multiple_inputs(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    keys = ("user_name", "greeting", "client_roots")
    if any(answered(params, key) is None for key in keys):
        return ask("asked", user_name=WHO, greeting=ask_model("Greet"), client_roots=types.ListRootsRequest())
    return "all told"


@tool()
async def test_input_required_result_multi_round(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    if params.request_state is None:
        return ask("first", step1=ask_person("Step 1: What is your name?", name=TEXT))
    if params.request_state == "first":
        name = answered(params, "step1").content["name"]
        return ask(f"named {name}", step2=ask_person("Step 2: What is your favorite color?", color=TEXT))
    return f"{params.request_state} likes {answered(params, 'step2').content['color']}"


@tool()
async def test_input_required_result_capabilities(
    context: Context, params: types.CallToolRequestParams
) -> Said:
    declared = context.session.client_capabilities
    if params.input_responses:
        return "told"
    if declared is not None and declared.elicitation is not None:
        return ask(question=WHO)
    need(context, "sampling")
    return ask(question=ask_model("Invent a name"))


@tool()
async def test_missing_capability(context: Context, params: types.CallToolRequestParams) -> Said:
    need(context, "sampling")
    return "there is a model"


# lists that change


@tool()
async def test_trigger_tool_change(context: Context, params: types.CallToolRequestParams) -> Said:
    comes_and_goes["tool"] = not comes_and_goes["tool"]
    await bus.publish(ToolsListChanged())
    for session in sessions.values():
        await session.send_tool_list_changed()
    return "changed"


@tool()
async def test_trigger_prompt_change(context: Context, params: types.CallToolRequestParams) -> Said:
    comes_and_goes["prompt"] = not comes_and_goes["prompt"]
    await bus.publish(PromptsListChanged())
    for session in sessions.values():
        await session.send_prompt_list_changed()
    return "changed"


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    assert context.request is not None, "over HTTP"
    if session := context.request.headers.get("mcp-session-id"):
        sessions[session] = context.session
    names = [*TOOLS, *(["test_dynamic_tool"] if comes_and_goes["tool"] else [])]
    return types.ListToolsResult(
        tools=[
            types.Tool(name=one, description=f"What {one} needs.", input_schema=schema_of(one))
            for one in names
        ]
    )


def schema_of(name: str) -> dict[str, Any]:
    return TOOLS[name].schema if name in TOOLS else {"type": "object"}


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        said = await TOOLS[params.name].run(context, params)
    except RuntimeError as error:
        return types.CallToolResult(content=[text(str(error))], is_error=True)
    if isinstance(said, types.InputRequiredResult):
        return said
    return types.CallToolResult(content=[text(said)] if isinstance(said, str) else said)


# resources

READ: Mapping[str, types.TextResourceContents | types.BlobResourceContents] = {
    one.uri: one
    for one in (
        types.TextResourceContents(
            uri="test://static-text",
            mime_type="text/plain",
            text="This is the content of the static text resource.",
        ),
        types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
        types.TextResourceContents(
            uri="test://watched-resource", mime_type="text/plain", text="Watched resource content."
        ),
    )
}


async def list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    found = [types.Resource(uri=uri, name=uri, mime_type=one.mime_type) for uri, one in READ.items()]
    return types.ListResourcesResult(resources=found)


async def list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="test://template/{id}/data", name="data", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    context: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(params.uri)
    found = READ.get(uri)
    if found is None and uri.startswith("test://template/") and uri.endswith("/data"):
        number = uri.removeprefix("test://template/").removesuffix("/data")
        said = orjson.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"}).decode()
        found = types.TextResourceContents(uri=uri, mime_type="application/json", text=said)
    if found is None:
        code = types.INVALID_PARAMS if context.protocol_version == "2026-07-28" else -32002
        raise MCPError(code, "Resource not found", {"uri": uri})
    return types.ReadResourceResult(contents=[found])


async def subscribe(context: Context, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


# prompts

PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


async def list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    given = {**PROMPTS, **({"test_dynamic_prompt": ()} if comes_and_goes["prompt"] else {})}
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=f"What {name} needs.",
                arguments=[types.PromptArgument(name=one, required=True) for one in arguments],
            )
            for name, arguments in given.items()
        ]
    )


async def get_prompt(
    context: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    said: list[Block]
    if params.name == "test_simple_prompt":
        said = [text("This is a simple prompt for testing.")]
    elif params.name == "test_prompt_with_arguments":
        said = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
    elif params.name == "test_prompt_with_embedded_resource":
        resource = embedded(given["resourceUri"], "Embedded resource content for testing.")
        said = [resource, text("Please process the embedded resource above.")]
    elif params.name == "test_prompt_with_image":
        said = [image, text("Please analyze the image above.")]
    elif params.name == "test_input_required_result_prompt":
        found = answered(params, "user_context", "context")
        if found is None:
            return ask(user_context=ask_person("What context should the prompt use?", context=TEXT))
        said = [text(f"In the context of {found.content['context']}")]
    else:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=one) for one in said])


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [one for one in ("paris", "park", "party") if one.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values)))


async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


def make_server() -> Server[Any]:
    server: Server[Any] = Server(
        NAME,
        version="1.0.0",
        get_tool_input_schema=schema_of,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=subscribe,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=set_level,  # suites ask for it in sessions
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME))
    return server


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"{NAME} at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        app = make_server().streamable_http_app()
        # clients leave streams open, for which it would wait
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])
