"""What the fuzz learns from a running process first: ids of sessions, runs, tasks, uploads; a KOI node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import urllib3

from koi.network import Signer
from retinue_koi.codec import payloads as koi
from retinue_koi.codec.payloads import FetchRids, PollEvents
from retinue_koi.codec.rids import type_of
from tests.processes.fuzz_targets import INITIALIZE, SESSION_VERSION

_WAITING = {
    "name": "fuzz",
    "input": {"type": "object", "properties": {"text": {"type": "string"}}},
    "steps": [{"id": "ask", "wait_for": {"topic": "approval", "message": "May it go on?"}, "timeout": "30s"}],
}
_SESSIONS = {
    "session": "/mcp",
    "hub_session": "/agents/retinue/mcp",
    "agent_session": "/agents/echo-agent/mcp",
}
_NODE_TYPE = "orn:koi-net.node"


class Learner:
    """A well-behaved client with the state token, which asks for what only a running process knows."""

    def __init__(self, url: str, token: str, *, is_hub: bool) -> None:
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))
        self._url = url
        self._token = token
        self._is_hub = is_hub
        self._signer = Signer("fuzz")
        self._is_stored = False
        self._sessions: list[tuple[str, str]] = []

    def learn(self) -> dict[str, str]:
        """New ids, by the names that stand between ``@`` in the targets.

        The sessions of MCP that were opened for the last ones are ended: a server keeps 27 kB for each.
        """
        self.end_sessions(self._sessions)
        self._sessions.clear()
        known: dict[str, str] = {}
        for name, path in _SESSIONS.items() if self._is_hub else (("session", "/mcp"),):
            known[name] = self._open_session(path)
        known |= self._meet_node()
        known["task"] = self._send_a2a("/", "map_agents" if self._is_hub else "echo")
        if self._is_hub:
            known["agent_task"] = self._send_a2a("/agents/echo-agent", "echo")
            known |= self._learn_of_hub()
        return known

    def end_sessions(self, sessions: Iterable[tuple[str, str]]) -> None:
        """End sessions of MCP at these paths; those that have ended meanwhile are not there.

        Only the caller that opened a session may end it: one with the token, or one without.
        """
        for path, session in sessions:
            ending = {"mcp-protocol-version": SESSION_VERSION, "mcp-session-id": session}
            for headers in ({**ending, "authorization": f"Bearer {self._token}"}, ending):
                reply = self._http.request("DELETE", self._url + path, headers=headers)
                assert reply.status < 500, (path, reply.status, reply.data[:300])

    def _learn_of_hub(self) -> dict[str, str]:
        run = self._call("start_run", {"workflow": _WAITING, "input": {"text": "x"}})["run"]
        if not self._is_stored:
            self._call("store_workflow", {"text": json.dumps(_WAITING)})
            self._is_stored = True
        self._call("call_skill", {"agent": "echo-agent", "skill": "echo", "arguments": {"text": "hello"}})
        traces = [call["trace_id"] for call in self._call("list_calls", {"limit": 5})["calls"]]
        tag = self._json("GET", "/v2/agents/echo/tags/list")["tags"][0]
        manifest = self._request("GET", f"/v2/agents/echo/manifests/{tag}").data.decode()
        upload = self._request("POST", "/v2/agents/fuzz/blobs/uploads/").headers["location"]
        link = self._json("POST", "/ui/links")["path"]
        signed_in = self._request("POST", link, origin=self._url)
        return {
            "run": run,
            "trace": traces[0] if traces else "none",
            "tag": tag,
            "manifest": manifest,
            "upload": upload.rpartition("/")[2],
            "link": self._json("POST", "/ui/links")["path"].rpartition("/")[2],
            "cookie": signed_in.headers["set-cookie"].partition("=")[2].partition(";")[0],
        }

    def _open_session(self, path: str) -> str:
        reply = self._request("POST", path, INITIALIZE, **{"mcp-protocol-version": SESSION_VERSION})
        session = reply.headers["mcp-session-id"]
        self._sessions.append((path, session))
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        within = {"mcp-protocol-version": SESSION_VERSION, "mcp-session-id": session}
        self._request("POST", path, ready, **within)
        return session

    def _meet_node(self) -> dict[str, str]:
        rids = self._json("POST", "/koi-net/rids/fetch", {"rid_types": [_NODE_TYPE]})["rids"]
        node = next(rid for rid in rids if type_of(rid) == _NODE_TYPE)
        introduction = koi.EventsPayload((self._signer.introduction,))
        return {
            "node": node,
            "introduction": self._signer.body(introduction, node).decode(),
            "poll": self._signer.body(PollEvents(5), node).decode(),
            "fetch": self._signer.body(FetchRids(), node).decode(),
        }

    def _send_a2a(self, path: str, skill: str) -> str:
        called = {"skill": skill, "arguments": {"text": "hello"} if skill == "echo" else {}}
        message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"data": called}]}
        request = {"jsonrpc": "2.0", "method": "SendMessage", "params": {"message": message}, "id": 1}
        return str(self._json("POST", path, request, **{"a2a-version": "1.0"})["result"]["task"]["id"])

    def _call(self, skill: str, arguments: Any) -> Any:
        request = {"jsonrpc": "2.0", "method": skill, "params": arguments, "id": 1}
        return self._json("POST", "/execute", request)["result"]

    def _json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return json.loads(self._request(method, path, body, **headers).data)

    def _request(self, method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        sent = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self._token}",
            **headers,
        }
        data = None if body is None else json.dumps(body).encode()
        reply = self._http.request(method, self._url + path, body=data, headers=sent, redirect=False)
        assert reply.status < 400, (method, path, reply.status, reply.data[:300])
        return reply
