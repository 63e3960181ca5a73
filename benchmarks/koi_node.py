"""A KOI node of ours that is measured: ``python -m benchmarks.koi_node FOLDER`` prints its RID and url."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import structlog
from starlette.applications import Starlette

from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of
from retinue.web.security import SecurityMiddleware
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.node import KoiNode
from retinue_koi.node_state import NodeState, NodeTypes
from retinue_koi.policy import Acceptance
from retinue_koi.server import routes


async def main(folder: str) -> int:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    listener = bind("127.0.0.1", 0)
    stop = Stop()
    stop.on_signals()
    kept = [PERSONALITY_TYPE]
    url = f"{url_of(listener)}/koi-net"
    state = NodeState.of("ours", NodeTypes(kept, kept, kept), base_url=url, folder=Path(folder))
    node = KoiNode(state, Acceptance())
    app = SecurityMiddleware(Starlette(routes=routes(node)))
    await node.start()
    async with serving(app, listener, stop):
        print(json.dumps({"rid": node.rid, "url": url}), flush=True)
        await stop.wait()
    await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(sys.argv[1])))
