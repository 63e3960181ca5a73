"""A first contact that cannot be joined: the log says why, and what a person can do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response
from structlog.testing import capture_logs

from koi.network import DEAD, introduced, publish, run_node, until, url_of
from retinue_koi.codec.bundles import EventType
from retinue_koi.peers import FirstContact
from tests.requirements import requirement
from tests.serving import serve_app

PAGE = "<html>\n<body>Nothing</body></html>"


@requirement("K-34")
@pytest.mark.parametrize(
    ("reply", "reason", "remedy"),
    [
        (None, "connection refused", "start the node there, or correct its URL"),
        (HTMLResponse(PAGE, 404), "answered 404: <html> <body>Nothing</body></html>", "a hub is one if"),
        (JSONResponse({"detail": "a token is needed"}, 401), "a token is needed", "set koi.trust to known"),
        (JSONResponse({"detail": "no"}, 403), "answered 403", "name this node in koi.known"),
        (JSONResponse({"detail": "payload"}, 422), "answered 422", "give the RID of the first contact"),
        (HTMLResponse(PAGE), "something else than JSON: <html> <body>", "give the URL of a KOI node"),
        (Response(b"\xff\x00garbage"), "something else than JSON", "give the URL of a KOI node"),
    ],
)
async def test_a_handshake_that_fails_is_logged_with_its_remedy(
    tmp_path: Path, reply: Response | None, reason: str, remedy: str
) -> None:
    app: Any = reply or JSONResponse(None)
    async with serve_app(app) as url:
        contact = DEAD if reply is None else f"{url}/koi-net"
        with capture_logs() as logged:
            async with run_node(tmp_path, "agent", first_contact=contact):
                await until(lambda: any(line["event"] == "koi_handshake_failed" for line in logged))
    told = next(line for line in logged if line["event"] == "koi_handshake_failed")
    assert told["url"] == contact
    assert reason in told["reason"]
    assert "\n" not in told["reason"]
    assert remedy in told["remedy"]


@requirement("K-37")
@pytest.mark.parametrize("stated", ["url", "url and RID"])
async def test_a_first_contact_that_knows_other_nodes_only_is_told_of_in_the_log(
    tmp_path: Path, stated: str
) -> None:
    async with run_node(tmp_path, trust="known") as coordinator:
        rid = coordinator.rid if stated == "url and RID" else None
        warning = "koi_handshake_failed" if rid else "koi_first_contact_silent"
        with capture_logs() as logged:
            contact = FirstContact(url_of(coordinator), rid)
            async with run_node(tmp_path, "agent", first_contact=contact, contact_answers_s=0.1):
                await until(lambda: any(line["event"] == warning for line in logged))
    told = next(line for line in logged if line["event"] == warning)
    assert told["url"] == url_of(coordinator)
    assert "koi.known there" in told["remedy"]


@requirement("K-34")
async def test_a_first_contact_that_answers_is_not_complained_of(tmp_path: Path) -> None:
    async with run_node(tmp_path) as coordinator:
        with capture_logs() as logged:
            async with run_node(tmp_path, "agent", first_contact=url_of(coordinator)) as agent:
                await until(lambda: agent.work.is_idle)
    assert not [line for line in logged if "handshake" in line["event"] or "silent" in line["event"]]


@requirement("K-44")
async def test_events_that_something_else_than_a_node_took_stay_in_the_queue(tmp_path: Path) -> None:
    async with serve_app(HTMLResponse(PAGE)) as url, run_node(tmp_path) as node:
        with capture_logs() as logged:
            signer = await introduced(node, "page", f"{url}/koi-net")
            rid = await publish(node, "helpful-agent")
            node.wire.outbox.push(signer.rid, rid, EventType.NEW)
            await until(lambda: any(line["event"] == "koi_events_not_sent" for line in logged))
        assert set(node.cache.queues[signer.rid]) >= {node.rid, rid}
