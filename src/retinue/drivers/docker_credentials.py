"""Credentials out of the Docker configuration and its helper programs, so that one login serves all tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from retinue.core.errors import InvalidSettingError
from retinue.drivers.commands import Limits, run_command
from retinue.protocols.oci.auth import Credentials
from retinue.protocols.oci.docker_config import (
    DockerConfig,
    helper_question,
    parse_docker_config,
    parse_helper_answer,
)

CONFIG_VARIABLE = "DOCKER_CONFIG"
HELPER_LIMITS = Limits(wall_s=10.0, cpu_s=10, output_bytes=64 * 1024)
_PASSED_ON = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GNUPGHOME", "PASSWORD_STORE_DIR", "XDG_RUNTIME_DIR")
"""What helpers need of the environment to reach the key ring of whoever runs us."""

_log = structlog.get_logger("retinue.registry")


class DockerCredentials:
    """The logins in ``$DOCKER_CONFIG/config.json``, else ``~/.docker/config.json``; read at each question,
    which is once per registry and process."""

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        folder = environment.get(CONFIG_VARIABLE)
        self._home = home
        self._file = (Path(folder) if folder else home / ".docker") / "config.json"
        self._helper_environment = {
            "HOME": str(home),
            CONFIG_VARIABLE: str(self._file.parent),
            **{name: environment[name] for name in _PASSED_ON if name in environment},
        }

    async def find(self, host: str) -> Credentials | None:
        """Who we are at ``host[:port]``; None when nobody logged in there.

        Raises InvalidSettingError when the file is damaged. A helper that fails has nothing to say.
        """
        config = await asyncio.to_thread(self._read)
        helper = config.find_helper(host)
        found = await self._ask_helper(helper, host) if helper is not None else None
        return found or config.find(host)

    def _read(self) -> DockerConfig:
        try:
            raw = self._file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return DockerConfig()
        except OSError as error:
            raise InvalidSettingError(
                str(self._file), error.strerror or str(error), remedy="check its owner and mode"
            ) from error
        return parse_docker_config(raw, where=str(self._file))

    async def _ask_helper(self, helper: str, host: str) -> Credentials | None:
        result = await run_command(
            [f"docker-credential-{helper}", "get"],
            folder=self._home,
            limits=HELPER_LIMITS,
            environment=self._helper_environment,
            stdin=helper_question(host),
        )
        if result.ok:
            return parse_helper_answer(result.stdout)
        # That it knows no such server is the usual reason, and said on standard output. What it printed is
        # not logged: it is a keeper of secrets.
        _log.info(
            "credential helper gave nothing",
            helper=helper,
            host=host,
            exit_code=result.exit_code,
            limit=result.limit,
        )
        return None
