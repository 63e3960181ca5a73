"""The agent that the public conformance suites ask for: names and texts are theirs, to the letter."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from retinue import Agent, Context, Part
from retinue.core.call import Answer
from retinue.core.errors import InputRequiredError

agent = Agent("conformance-agent", version="1.0.0", description="What the suites ask for.", logging=True)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
WAV = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")

_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


# tools


@agent.skill(expose=True)
async def test_simple_text() -> str:
    """Gives a simple text."""
    return "This is a simple text response for testing."


@agent.skill(expose=True)
async def test_image_content() -> Part:
    """Gives an image."""
    return Part.image(PNG)


@agent.skill(expose=True)
async def test_audio_content() -> Part:
    """Gives a sound."""
    return Part.audio(WAV)


@agent.skill(expose=True)
async def test_embedded_resource() -> Part:
    """Gives a resource with its content."""
    return Part.resource("test://embedded-resource", "This is an embedded resource content.")


@agent.skill(expose=True)
async def test_multiple_content_types() -> list[str | Part]:
    """Gives text, an image and a resource."""
    content = '{"test":"data","value":123}'
    mixed = Part.resource("test://mixed-content-resource", content, "application/json")
    return ["Multiple content types test:", Part.image(PNG), mixed]


@agent.skill(expose=True)
async def test_tool_with_logging(ctx: Context) -> str:
    """Sends three log lines."""
    await ctx.log("Tool execution started")
    await asyncio.sleep(0.05)
    await ctx.log("Tool processing data")
    await asyncio.sleep(0.05)
    await ctx.log("Tool execution completed")
    return "Tool with logging executed successfully"


@agent.skill(expose=True)
async def test_logging_tool(ctx: Context) -> str:
    """Sends a log line to those who asked for some."""
    await ctx.log("a line")
    return "logged"


@agent.skill(expose=True)
async def test_tool_with_progress(ctx: Context) -> str:
    """Tells its progress three times."""
    await ctx.progress(0.0)
    await asyncio.sleep(0.05)
    await ctx.progress(0.5)
    await asyncio.sleep(0.05)
    await ctx.progress(1.0)
    return "done"


@agent.skill(expose=True)
async def test_error_handling() -> str:
    """Always fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@agent.skill(expose=True)
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    return f"LLM response: {await ctx.sample(prompt, max_tokens=100)}"


@agent.skill(expose=True)
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the person for a name and an address."""
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    schema = {"type": "object", "properties": fields, "required": ["username", "email"]}
    return f"User response: {await _ask(ctx, message, schema)}"


@agent.skill(expose=True)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for each type."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answer = await _ask(ctx, "Please check the defaults", {"type": "object", "properties": fields})
    return f"Elicitation completed: {answer}"


@agent.skill(expose=True)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks with every form of choice."""
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    answer = await _ask(ctx, "Please choose", {"type": "object", "properties": fields})
    return f"Elicitation completed: {answer}"


async def _ask(ctx: Context, message: str, schema: dict[str, Any]) -> str:
    return f"action=accept, content={await ctx.elicit(message, schema)}"


@agent.skill(
    expose=True,
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12_tool(**fields: Any) -> str:
    """Takes what JSON Schema 2020-12 can say."""
    return f"given: {', '.join(fields)}"


@agent.skill(
    expose=True,
    input_schema={
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
    },
)
async def test_x_mcp_header(**fields: Any) -> str:
    """Has a parameter that travels as a header too."""
    return ", ".join(fields.values())


# questions of the sessionless era


@agent.skill(expose=True)
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Asks for a name."""
    answer = await ctx.elicit("What is your name?", _NAME, key="user_name")
    return f"Hello, {answer['name']}!"


@agent.skill(expose=True)
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model for a capital."""
    return await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")


@agent.skill(expose=True)
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks where the client works."""
    return ", ".join(root.uri for root in await ctx.roots(key="client_roots"))


@agent.skill(expose=True)
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Asks to confirm."""
    await ctx.elicit("Please confirm", _OK, key="confirm")
    return "state-ok"


@agent.skill(expose=True)
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Asks to confirm, with a state that must not be changed."""
    await ctx.elicit("Please confirm", _OK, key="confirm")
    return "confirmed"


@agent.skill(expose=True)
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks three things at once."""
    answer, greeting, roots = await asyncio.gather(
        ctx.elicit("What is your name?", _NAME, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.roots(key="client_roots"),
    )
    return f"{greeting} {answer['name']} of {len(roots)} roots"


@agent.skill(expose=True)
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks one thing after the other."""
    color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    name = await ctx.elicit("Step 1: What is your name?", _NAME, key="step1")
    chosen = await ctx.elicit("Step 2: What is your favorite color?", color, key="step2")
    return f"{name['name']} likes {chosen['color']}"


@agent.skill(expose=True)
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks a person, else a model: whatever the client can ask."""
    try:
        return str(await ctx.elicit("What is your name?", _NAME))
    except InputRequiredError:
        return await ctx.sample("Invent a name", max_tokens=10)


@agent.skill(expose=True)
async def test_missing_capability(ctx: Context) -> str:
    """Needs a client with a model."""
    return await ctx.sample("Say something", max_tokens=10)


@agent.skill(expose=True)
async def test_streaming_elicitation(ctx: Context) -> str:
    """Tells its progress, then asks."""
    await ctx.progress(0.1, "about to ask")
    answer = await ctx.elicit("What is your name?", _NAME, key="user_name")
    return f"Hello, {answer['name']}!"


# lists that change


@agent.skill(expose=True)
async def test_trigger_tool_change() -> str:
    """Adds a tool, or takes it away again."""
    if agent.record().find_skill("test_dynamic_tool") is None:
        agent.skill("test_dynamic_tool", expose=True, description="Comes and goes")(_say_dynamic)
    else:
        agent.forget_skill("test_dynamic_tool")
    return "changed"


async def _say_dynamic() -> str:
    return "dynamic"


@agent.skill(expose=True)
async def test_trigger_prompt_change() -> str:
    """Adds a prompt, or takes it away again."""
    if any(prompt.name == "test_dynamic_prompt" for prompt in agent.record().prompts):
        agent.forget_prompt("test_dynamic_prompt")
    else:
        agent.prompt("test_dynamic_prompt", description="Comes and goes", expose=True)(_say_dynamic)
    return "changed"


# resources


@agent.resource("test://static-text", expose=True)
async def static_text() -> str:
    """A text that stays."""
    return "This is the content of the static text resource."


@agent.resource("test://static-binary", mime="image/png", expose=True)
async def static_binary() -> bytes:
    """A picture that stays."""
    return PNG


@agent.resource("test://template/{id}/data", mime="application/json", expose=True)
async def template_data(id: str) -> Any:  # noqa: A002 - the suite's name for it
    """Data by its id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@agent.resource("test://watched-resource", expose=True, live=True)
async def watched() -> str:
    """A text that readers may watch."""
    return "Watched resource content."


# prompts


@agent.prompt(expose=True)
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@agent.prompt(expose=True)
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@agent.completes("test_prompt_with_arguments", "arg1")
async def complete_arg1(value: str) -> list[str]:
    return [one for one in ("paris", "park", "party") if one.startswith(value)]


@agent.prompt(expose=True)
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[str | Part]:  # noqa: N803 - the suite's
    """A prompt that holds a resource."""
    embedded = Part.resource(resourceUri, "Embedded resource content for testing.")
    return [embedded, "Please process the embedded resource above."]


@agent.prompt(expose=True)
async def test_prompt_with_image() -> list[str | Part]:
    """A prompt that holds a picture."""
    return [Part.image(PNG), "Please analyze the image above."]


@agent.prompt(expose=True)
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks first."""
    schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    answer = await ctx.elicit("What context should the prompt use?", schema, key="user_context")
    return f"In the context of {answer['context']}"


@agent.skill(expose=True)
async def test_answer_with_value() -> Answer:
    """Gives a value and a picture beside it."""
    return Answer({"width": 1}, parts=(Part.image(PNG),))
