"""python -m scripts.think_demo [--model NAME]: ``make demo-think``; exits 0 only if all of it happened.

An agent in Markdown finds skills of a mesh, uses them in five turns, asks a person for an approval, is killed
with its hub and goes on. Its model follows a script. With ``--model`` a real model takes its place, such as
claude with ANTHROPIC_API_KEY.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".tools" / "think_demo"


def main(arguments: list[str]) -> int:
    """Install what the demo needs and run it; the exit status."""
    parser = argparse.ArgumentParser(prog="make demo-think")
    parser.add_argument("--model", metavar="NAME", help="a model agent that has its key, such as claude")
    options = parser.parse_args(arguments)
    # so that a demo that is terminated ends what it has started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        from scripts.npm_packages import InstallFailedError, install
    except ImportError as error:
        return _refuse(f"there is no node: {error}")
    try:
        install(Path(__file__).parent / "npm", PACKAGES)
    except InstallFailedError as error:
        return _refuse(str(error))
    from scripts.think_demo.story import run_demo

    try:
        return run_demo(PACKAGES, options.model)
    except KeyboardInterrupt:
        return 130


def _refuse(problem: str) -> int:
    print(
        f"make demo-think: {problem}\n"
        "The demo needs node and two MCP servers from npm once. Set npm_config_registry behind a mirror, and "
        "HTTPS_PROXY behind a proxy. `make demo` needs neither of them.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
