"""Policies of IBM's ContextForge: plugins on the hook ``tool_pre_invoke``, as its documentation has them.

A policy is one plugin in its configuration, with a condition that names the tool and the rule in Python. The
plugins are run by its own manager in its own interpreter, without its gateway around them, because only the
decision is measured. agentgateway is not measured: PyPI, npm and Debian do not have it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mcp_hub_processes import install_context_forge

RULE = '''
from cpex.framework import Plugin, PluginViolation, ToolPreInvokeResult


class Rule(Plugin):
    """Refuses an amount above a limit."""

    def __init__(self, config):
        super().__init__(config)
        self.limit = config.config["limit"]

    async def tool_pre_invoke(self, payload, context):
        amount = (payload.args or {}).get("amount")
        if isinstance(amount, (int, float)) and amount > self.limit:
            violation = PluginViolation(reason="large", description="large", code="LARGE", details={})
            return ToolPreInvokeResult(continue_processing=False, violation=violation)
        return ToolPreInvokeResult(continue_processing=True)
'''

MEASURE = """
import asyncio, json, logging, sys, time
from cpex.framework import GlobalContext, PluginManager, ToolHookType, ToolPreInvokePayload

CALLS, ROUNDS = 300, 5
logging.disable(logging.CRITICAL)


async def measure(count, concerned):
    plugins = [
        {
            "name": f"p{number}",
            "kind": "rule.Rule",
            "hooks": ["tool_pre_invoke"],
            "mode": "sequential",
            "priority": number,
            "conditions": [{"tools": ["pay" if number < concerned else f"tool-{number}"]}],
            "config": {"limit": 1_000 + number},
        }
        for number in range(count)
    ]
    with open(f"{count}.json", "w") as file:
        json.dump({"plugins": plugins, "plugin_dirs": [], "plugin_settings": {"plugin_timeout": 30}}, file)
    PluginManager.reset()
    manager = PluginManager(f"{count}.json")
    await manager.initialize()

    async def run(amount):
        payload = ToolPreInvokePayload(name="pay", args={"amount": amount})
        result, _ = await manager.invoke_hook(
            ToolHookType.TOOL_PRE_INVOKE, payload, GlobalContext(request_id="1")
        )
        return result.continue_processing

    assert await run(10) and not await run(5_000)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            await run(10)
        best = min(best, (time.process_time() - began) / CALLS)
    await manager.shutdown()
    return best * 1e6


concerned, *counts = map(int, sys.argv[1:])
print(json.dumps({count: asyncio.run(measure(count, concerned)) for count in counts}))
"""


def measure_context_forge(counts: Sequence[int], concerned: int) -> dict[int, float]:
    """Microseconds of processor time of one decision by the number of plugins.

    ``concerned`` of them are about the tool. Empty where ContextForge cannot be installed, or its plugins
    cannot be run.
    """
    place = install_context_forge()
    if place is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="plugins-") as name:
        folder = Path(name)
        (folder / "rule.py").write_text(RULE, "utf-8")
        (folder / "measure.py").write_text(MEASURE, "utf-8")
        command = [str(place / "bin" / "python"), "measure.py", str(concerned), *map(str, counts)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(f"  plugins of ContextForge are left out: {done.stderr[-200:].strip()}", flush=True)
        return {}
    return {int(count): spent for count, spent in json.loads(done.stdout.splitlines()[-1]).items()}
