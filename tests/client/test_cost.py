"""What a program pays for the client before its first call."""

from __future__ import annotations

import subprocess
import sys

SERVER_SIDE = (
    "aiohttp",
    "dbos",
    "jsonschema_rs",
    "mcp",
    "pydantic",
    "ruamel",
    "sqlalchemy",
    "starlette",
    "structlog",
    "uvicorn",
    "retinue.authoring",
    "retinue.hub",
    "retinue.runtime",
    "retinue.settings",
    "retinue.workflows",
)
MAX_KIB = 45 * 1024

CODE = f"""
import sys
import retinue
mesh = retinue.connect("http://127.0.0.1:1", retries=0)
import asyncio
async def ask():
    async with mesh:
        return (await mesh.ask("nothing")).status
assert asyncio.run(ask()) == "failed"
print([name for name in {SERVER_SIDE!r} if name in sys.modules])
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_a_first_call_loads_nothing_of_the_servers_side_and_little_memory() -> None:
    """CPU time is measured by the benchmark; the modules decide it."""
    printed = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded, most_kib = printed.stdout.strip().splitlines()
    assert loaded == "[]"
    assert int(most_kib) <= MAX_KIB
