"""The endpoints of a hub and of an agent, with bodies that they accept; ``fuzzing`` changes them by chance.

``@name@`` in a path, a header or a body stands for something that `fuzz_ids.learn` got from the running
process, such as the id of a session.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MCP_VERSION, SESSION_VERSION = "2026-07-28", "2025-11-25"
MCP_META = {
    "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@dataclass(frozen=True, slots=True)
class Target:
    """One method of one endpoint.

    ``bodies`` are JSON values, or texts that are sent as they are; of a form, its fields. ``statuses`` are
    those that a request with an unchanged body and the state token may have; one of 500 or more is no fault
    of the server if it is among them.
    """

    method: str
    path: str
    bodies: tuple[Any, ...] = ("",)
    media_type: str = JSON
    headers: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)


def encode_form(fields: dict[str, Any]) -> str:
    return urlencode({key: value if isinstance(value, str) else str(value) for key, value in fields.items()})


def _call(method: str, params: Any = None, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}, "id": 1, **more}


_ECHO = {"text": "hello"}
_CALL_ECHO = {"agent": "echo-agent", "skill": "echo", "arguments": _ECHO}
_SKILL_CALLS = (_call("echo", _ECHO), [_call("echo", _ECHO), _call("x"), _call("echo", _ECHO, id=2)])
_HUB_CALLS = (
    _call("list_agents", {"limit": 5, "query": "echo"}),
    _call("show_agent", {"name": "echo-agent"}),
    _call("find_skills", {"query": "give the text back", "limit": 5}),
    _call("call_skill", _CALL_ECHO),
    _call("map_agents"),
    _call("show_mesh"),
    _call("refresh_agents"),
    _call("query_capabilities", {"query_type": "summary"}),
    _call("list_calls", {"limit": 5, "agent": "echo-agent", "failed": True}),
    _call("show_trace", {"trace": "@trace@"}),
    _call("list_workflows", {"detailed": True}),
    _call(
        "check_workflow", {"text": "name: x\nsteps:\n  - {id: a, skill: echo, with: {text: '${{ 1 }}'}}\n"}
    ),
    _call("list_runs", {"status": "running", "limit": 5}),
    _call("show_run", {"run": "@run@"}),
    _call("signal_run", {"run": "@run@", "topic": "other", "value": {"a": 1}}),
    _call("send_message", {"message": {"performative": "QUERY_CAPABILITIES", "payload": {}}}),
)

_MESSAGES = (
    {"performative": "TASK_REQUEST", "receiver": {"agent_id": "echo-agent"},
     "payload": {"task_type": "echo", "task_parameters": _ECHO}},
    {"performative": "QUERY_CAPABILITIES", "sender": {"agent_id": "eddy"}, "message_id": "q-1",
     "payload": {"query_type": "specific", "query_parameters": {"capabilities": ["echo"]}}},
    {"performative": "PROPOSE", "receiver": {"agent_id": "echo-agent"}, "payload": {"task_type": "echo"}},
    {"performative": "QUERY_IF", "payload": {"condition": "action", "value": "echo"}},
    {"performative": "QUERY_REF", "payload": {"reference": "performatives"}},
    {"performative": "SUBSCRIBE", "payload": {"topic": "capabilities"}, "callback_url": "http://127.0.0.1:9/"},
    {"performative": "CANCEL", "payload": {"task_id": "q-1"}, "in_reply_to": "q-1",
     "reply_by": "2026-11-23T00:00:00Z", "timestamp": "2026-11-23T00:00:00Z", "language": "en",
     "ontology": "elizaos:ontology:general/task_result", "mcp_version": "0.1.0", "trace": {"depth": 1},
     "signature": {"protected": "e30", "signature": "AA"}},
)  # fmt: skip

_A2A_CALLS = (
    _call("ListTasks", {"pageSize": 5, "status": "TASK_STATE_COMPLETED"}),
    _call("GetExtendedAgentCard"),
)


def _a2a(path: str, task: str, skill: str, arguments: dict[str, Any]) -> tuple[Target, ...]:
    named = {"id": f"@{task}@"}
    push = {"taskId": f"@{task}@", "id": "p"}
    data = {"skill": skill, "arguments": arguments}
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"data": data}], "metadata": data}
    legacy = {
        "messageId": "m-2",
        "role": "user",
        "kind": "message",
        "parts": [{"kind": "data", "data": data}],
    }
    calls = (
        *_A2A_CALLS,
        _call("SendMessage", {"message": message, "configuration": {"historyLength": 1}}),
        _call("SendStreamingMessage", {"message": message}),
        _call("GetTask", {**named, "historyLength": 1}),
        _call("CancelTask", named),
        _call("SubscribeToTask", named),
        _call("CreateTaskPushNotificationConfig", {**push, "url": "http://127.0.0.1:9/"}),
        _call("GetTaskPushNotificationConfig", push),
        _call("ListTaskPushNotificationConfigs", push),
        _call("DeleteTaskPushNotificationConfig", push),
        _call("message/send", {"message": legacy}),
        _call("message/stream", {"message": legacy}),
        _call("tasks/get", named),
    )
    return (Target("POST", path, calls, headers=("A2A-Version: 1.0",)), Target("POST", path, calls))


_MCP_CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("server/discover", "", {}),
    ("tools/list", "", {}),
    ("resources/list", "", {}),
    ("resources/read", "agent:echo-agent", {"uri": "agent:echo-agent"}),
    ("prompts/list", "", {}),
    ("prompts/get", "x", {"name": "x", "arguments": {"input": "x"}}),
)
"""Each method with the name that its header repeats, and its parameters."""

_SESSION_CALLS = (
    _call("tools/list"),
    _call("resources/list", {"cursor": "x"}),
    _call("resources/templates/list"),
    _call("resources/read", {"uri": "agent:echo-agent"}),
    _call("resources/subscribe", {"uri": "agent:echo-agent"}),
    _call("prompts/list"),
    _call("completion/complete", {"ref": {"type": "ref/resource", "uri": "agent:{name}"},
                                  "argument": {"name": "name", "value": "e"}}),
    _call("logging/setLevel", {"level": "debug"}),
    _call("ping"),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept", "content": {}}},
)  # fmt: skip
INITIALIZE = _call(
    "initialize",
    {"protocolVersion": SESSION_VERSION, "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}},
)


def _mcp(path: str, session: str, tool: str, arguments: dict[str, Any]) -> tuple[Target, ...]:
    called = {"name": tool, "arguments": arguments}
    calls = (*_MCP_CALLS, ("tools/call", tool, called))
    in_session = (
        *_SESSION_CALLS,
        _call("tools/call", called),
        _call("tools/call", {**called, "_meta": {"progressToken": 1}}),
    )
    within = (f"MCP-Protocol-Version: {SESSION_VERSION}", f"Mcp-Session-Id: @{session}@")
    answered = (200, 202, 400, 404)  # a session that another request has ended is not there
    return (
        *(
            Target(
                "POST",
                path,
                (_call(method, {**params, "_meta": MCP_META}),),
                headers=(
                    f"MCP-Protocol-Version: {MCP_VERSION}",
                    f"Mcp-Method: {method}",
                    *((f"Mcp-Name: {name}",) if name else ()),
                ),
                statuses=(200, 400, 404),
            )
            for method, name, params in calls
        ),
        Target("POST", path, (INITIALIZE,)),
        Target("POST", path, in_session, headers=within, statuses=answered),
        Target("GET", path, headers=within, statuses=(*answered, 409)),
        Target("DELETE", path, headers=within, statuses=(*answered, 204)),
    )


_MANIFEST = {"rid": "@node@", "timestamp": "2026-11-23T00:00:00.000000Z", "sha256_hash": "0" * 64}
_EVENT = {"rid": "orn:agent.personality:fuzz/1.0", "event_type": "NEW", "manifest": None, "contents": None}
_PERSONALITY = {
    "rid": "orn:agent.personality:fuzz/1.0", "node_rid": "@node@", "base_url": "http://127.0.0.1:9/",
    "mcp_url": None,
    "traits": [{"name": "echo", "description": "x", "type": "str", "value": 1, "is_callable": True}],
}  # fmt: skip
_KOI: dict[str, tuple[Any, ...]] = {
    "/events/broadcast": (
        {"events": [_EVENT, {**_EVENT, "event_type": "FORGET"}]},
        {"events": [{**_EVENT, "manifest": _MANIFEST, "contents": _PERSONALITY}]},
        "@introduction@",
    ),
    "/events/poll": ({"rid": "@node@", "limit": 5}, "@poll@"),
    "/rids/fetch": ({"rid_types": ["orn:agent.personality"]}, {"rid_types": []}, "@fetch@"),
    "/manifests/fetch": ({"rid_types": [], "rids": ["@node@", "orn:agent.personality:fuzz/1.0"]},),
    "/bundles/fetch": ({"rids": ["@node@"]},),
}

SIGNED_REFUSED = (200, 400, 403, 404, 422)
"""A node that was not introduced, or whose message was seen before, is refused."""


def _koi() -> tuple[Target, ...]:
    return tuple(
        Target("POST", prefix + path, bodies, statuses=SIGNED_REFUSED)
        for prefix in ("", "/koi-net")
        for path, bodies in _KOI.items()
    )


def _rest(trait: str, arguments: dict[str, Any], base: str = "") -> tuple[Target, ...]:
    """The routes of seed 003 below each of their prefixes."""
    return tuple(
        target
        for prefix in (base, f"{base}/koi-net", f"{base}/mcp")
        for target in (
            Target("GET", f"{prefix}/resources/list"),
            Target("GET", f"{prefix}/resources/read/agent:echo-agent"),
            Target("GET", f"{prefix}/tools/list"),
            Target("POST", f"{prefix}/tools/call/{trait}", (arguments,)),
            Target("POST", f"{prefix}/tools/call/{trait}", ('"hello"',), statuses=(200, 404, 422)),
        )
    )


_PROBES = tuple(
    Target("GET", path)
    for path in (
        "/health",
        "/ready",
        "/metrics",
        "/.well-known/jwks.json",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/agent-card.json",
        "/agent-card",
    )
)

_ZERO = f"sha256:{'0' * 64}"
_SAVED = f"sha256:{sha256(b'hello').hexdigest()}"
_ARTIFACTS = (
    Target("POST", "/artifacts", ("hello", ""), "text/plain", statuses=(201,)),
    Target("POST", "/artifacts?name=a.txt", ("hello",), "text/plain", ("X-Retinue-Run: run",),
           statuses=(201,)),
    Target("GET", "/artifacts?all=1&limit=5&after=9999999999"),
    Target("GET", f"/artifacts/{_SAVED}", statuses=(200, 404)),
    Target("GET", f"/artifacts/{_SAVED}", headers=("Range: bytes=1-3",), statuses=(206, 404)),
    Target("GET", f"/artifacts/{_ZERO}", statuses=(404,)),
    Target("GET", f"/artifacts/{_SAVED}/holders", statuses=(200, 404)),
    Target("DELETE", f"/artifacts/{_SAVED}?all=1", statuses=(200, 404)),
    Target("POST", "/artifacts/collect"),
)  # fmt: skip

_OF_EVERY_PROCESS = (
    *_ARTIFACTS,
    *_PROBES,
    Target("POST", "/messages", _MESSAGES),
    Target("POST", "/messages/", _MESSAGES, headers=("Prefer: respond-async",), statuses=(200, 202)),
    Target("GET", "/openapi.json"),
    *_koi(),
)

AGENT_TARGETS = (
    *_OF_EVERY_PROCESS,
    Target("POST", "/execute", _SKILL_CALLS),
    *_mcp("/mcp", "session", "echo", _ECHO),
    *_a2a("/", "task", "echo", _ECHO),
    *_rest("echo", _ECHO),
)

_UPLOADS = "/v2/agents/fuzz/blobs/uploads"
_OCI = (
    Target("GET", "/v2"),
    Target("GET", "/v2/"),
    Target("GET", "/v2/_catalog?n=5&last=agents/a"),
    Target("GET", "/v2/_changes?after=0&wait=0", statuses=(200, 204, 400, 403)),
    Target("GET", f"/v2/agents/echo/referrers/{_ZERO}", statuses=(200, 404)),
    Target("POST", "/v2/_manifests", ({"manifests": {"agents/echo": _ZERO}},), statuses=(200, 404)),
    Target("GET", "/v2/token?service=retinue&scope=repository:agents/echo:pull"),
    Target("GET", "/v2/agents/echo/tags/list"),
    Target("GET", "/v2/agents/echo/manifests/@tag@"),
    Target("GET", f"/v2/agents/echo/blobs/{_ZERO}", statuses=(404,)),
    Target("POST", f"{_UPLOADS}/", statuses=(202, 429)),
    Target("POST", _UPLOADS, statuses=(202, 429)),
    Target("GET", f"{_UPLOADS}/@upload@", statuses=(204, 404)),
    Target("PATCH", f"{_UPLOADS}/@upload@", ("some bytes",), "application/octet-stream",
           statuses=(202, 404, 416)),
    Target("PUT", f"{_UPLOADS}/@upload@?digest={_ZERO}", ("some bytes",), "application/octet-stream",
           statuses=(400, 404)),
    Target("DELETE", f"{_UPLOADS}/@upload@", statuses=(204, 404)),
    Target("PUT", f"/v2/agents/fuzz/manifests/{_ZERO}", ("@manifest@",),
           "application/vnd.oci.image.manifest.v1+json", statuses=(201, 400, 404)),
    Target("DELETE", f"/v2/agents/fuzz/manifests/{_ZERO}", statuses=(404,)),
    Target("DELETE", f"/v2/agents/fuzz/blobs/{_ZERO}", statuses=(405,)),
    Target("POST", "/v2/agents/echo/nothing", statuses=(404, 405)),
)  # fmt: skip

_OWN_PAGE = ("Sec-Fetch-Site: same-origin", "Accept: text/html")
_SIGNED_IN = (*_OWN_PAGE, "Cookie: retinue_session=@cookie@")
_DRAFT = "name: fuzz\nsteps:\n  - {id: a, skill: echo, with: {text: '${{ input.text }}'}}\n"
_SHOWN = (200, 303, 404)
_PAGES = (
    "/",
    "/ui/calls?skill=echo&before=5&failed=1",
    "/ui/traces/@trace@?failed=1&from=0",
    "/ui/mesh",
    "/ui/agents?q=text&after=a",
    "/ui/agents/echo-agent?from=0",
    "/ui/agents/echo-agent/skills/echo?as=json",
    "/ui/runs?status=running&workflow=fuzz",
    "/ui/runs/@run@?step=ask&from=0&failed=1",
    "/ui/workflows",
    "/ui/workflows/new/draft?from=fuzz",
    "/ui/workflows/fuzz",
    "/ui/live",
    "/ui/files/nosuch",
    f"/ui/artifacts/{_SAVED}",
    "/ui/nosuch/page?a=b",
    "/ui/static/style.css",
    "/ui/sign-in?to=/ui/mesh",
)
_OWNERS_PAGES = (
    "/ui/approvals?from=0",
    "/ui/approvals/nosuch",
    "/ui/policies",
    "/ui/policies/draft",
    "/ui/teams?from=a&to=b",
)
_FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "/ui/agents/echo-agent/skills/echo": (
        {"/text": "hello"}, {"json": '{"text": "hello"}', "action": "as-form"},
        {"/text": "", "action": "as-json"},
    ),
    "/ui/runs/@run@": (
        {"action": "signal_run", "topic": "other", "value": "1"}, {"action": "cancel_run", "mode": "x"},
        {"action": "rerun_run", "from_step": "ask"}, {"action": "resume_run"},
    ),
    "/ui/approvals/nosuch": (
        {"action": "approve"}, {"action": "deny", "comment": "no"}, {"action": "similar", "token": "x"},
    ),
    "/ui/policies/draft": ({"text": "forbid", "since": "1d"}, {"text": "", "since": "x"}),
    "/ui/workflows/fuzz": ({"/text": "hello"},),
    "/ui/workflows/new/draft": (
        {"text": _DRAFT, "action": "check"}, {"text": _DRAFT, "input": '{"text": "x"}', "action": "check"},
        {"text": _DRAFT, "action": "save"},
    ),
    "/ui/sign-in": ({"token": "rtn_x"},),
    "/ui/sign-out": ({},),
}  # fmt: skip
_DASHBOARD = (
    *(Target("GET", path, headers=("Accept: text/html",), statuses=_SHOWN) for path in _PAGES),
    *(Target("GET", path, headers=_SIGNED_IN, statuses=_SHOWN) for path in _PAGES),
    *(
        Target("GET", path, headers=headers, statuses=(*_SHOWN, 403))
        for path in _OWNERS_PAGES
        for headers in (("Accept: text/html",), _SIGNED_IN)
    ),
    *(
        Target("POST", path, forms, FORM, _SIGNED_IN, statuses=(200, 303, 400, 403, 404, 409, 422))
        for path, forms in _FORMS.items()
    ),
    Target("POST", "/ui/links"),
    Target("GET", "/ui/link/@link@", statuses=(200, 303, 403)),
    Target("POST", "/ui/link/@link@", statuses=(303, 403, 409)),
)

_SEARCH = {
    "query": {"text": "give text back", "filter": {"type": ["application/a2a-agent-card+json"]}},
    "federation": "none",
    "pageSize": 5,
}
_HOOK = {"events": [{"id": "1", "action": "push", "timestamp": "2026-11-23T00:00:00Z",
                     "target": {"repository": "agents/echo", "tag": "v1", "digest": _ZERO,
                                "mediaType": "application/vnd.oci.image.manifest.v1+json"},
                     "request": {"host": "127.0.0.1:5000"}}]}  # fmt: skip

_AGENT_AT_HUB = "/agents/echo-agent"

HUB_TARGETS = (
    *_OF_EVERY_PROCESS,
    Target("POST", "/execute", (*_HUB_CALLS, *_SKILL_CALLS)),
    Target("POST", f"{_AGENT_AT_HUB}/execute", _SKILL_CALLS),
    Target("POST", f"{_AGENT_AT_HUB}/messages", _MESSAGES),
    Target("POST", f"{_AGENT_AT_HUB}/messages/", _MESSAGES),
    Target("GET", f"{_AGENT_AT_HUB}/agent-card"),
    Target("GET", f"{_AGENT_AT_HUB}/openapi.json"),
    Target("GET", f"{_AGENT_AT_HUB}/.well-known/agent-card.json"),
    *_mcp("/mcp", "session", "call_skill", _CALL_ECHO),
    *_mcp("/agents/retinue/mcp", "hub_session", "call_skill", _CALL_ECHO),
    *_mcp(f"{_AGENT_AT_HUB}/mcp", "agent_session", "echo", _ECHO),
    *_a2a("/", "task", "call_skill", _CALL_ECHO),
    *_a2a(_AGENT_AT_HUB, "agent_task", "echo", _ECHO),
    *_a2a(f"{_AGENT_AT_HUB}/", "agent_task", "echo", _ECHO),
    *_rest("call_skill", _CALL_ECHO),
    *_rest("echo", _ECHO, _AGENT_AT_HUB),
    Target("POST", "/hooks/registry", (_HOOK,), "application/vnd.docker.distribution.events.v2+json",
           statuses=(200, 202, 429)),
    Target("POST", f"/webhooks/{'0' * 32}", ({"commit": "ab12"},), statuses=(404,)),
    Target("GET", "/.well-known/ai-catalog.json"),
    Target("POST", "/search", (_SEARCH,)),
    Target("POST", "/explore", (_SEARCH,), statuses=(501,)),
    *_OCI,
    *_DASHBOARD,
)  # fmt: skip

ODD_PATHS = (
    "/agents/..%2f..%2fetc/agent-card",
    "/agents/%00/mcp",
    "/v2/_catalog?n=-1&last=%00",
    "/v2/../../etc/passwd",
    "/v2/agents/fuzz/manifests/sha256:00",
    "/ui/agents/%ff/skills/%2e%2e",
    "/ui/static/..%2f..%2fserver.py",
    "/resources/read/agent:",
    "/nowhere",
    "/%ff%fe",
    "*",
)
