"""Registry credentials from the Docker configuration and its credential helpers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from retinue.core.errors import InvalidSettingError
from retinue.oci.codec.auth import RegistryCredentials
from retinue.oci.codec.docker_config import (
    DockerConfig,
    parse_docker_config,
    parse_helper_answer,
    render_helper_request,
)
from retinue.processes.limited import ProgramLimits, run_command

CONFIG_VARIABLE = "DOCKER_CONFIG"
HELPER_LIMITS = ProgramLimits(wall_s=10.0, cpu_s=10, output_bytes=64 * 1024)
_FORWARDED = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GNUPGHOME", "PASSWORD_STORE_DIR", "XDG_RUNTIME_DIR")
"""Environment variables that helpers need to reach the key ring of the user."""

_log = structlog.get_logger("retinue.registry")


class DockerCredentials:
    """Logins in ``$DOCKER_CONFIG/config.json``, else ``~/.docker/config.json``.

    The file is read at each query; a process queries it once per registry.
    """

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        folder = environment.get(CONFIG_VARIABLE)
        self._home = home
        self._file = (Path(folder) if folder else home / ".docker") / "config.json"
        self._helper_environment = {
            "HOME": str(home),
            CONFIG_VARIABLE: str(self._file.parent),
            **{name: environment[name] for name in _FORWARDED if name in environment},
        }

    async def find(self, host: str) -> RegistryCredentials | None:
        """The credentials for ``host[:port]``; None when there is no login.

        A failing helper counts as no login.
        Raises InvalidSettingError when the file is damaged.
        """
        config = await asyncio.to_thread(self._read)
        helper = config.find_helper(host)
        credentials = await self._ask_helper(helper, host) if helper is not None else None
        return credentials or config.find(host)

    def _read(self) -> DockerConfig:
        try:
            raw = self._file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return DockerConfig()
        except OSError as error:
            raise InvalidSettingError(
                str(self._file), error.strerror or str(error), remedy="check its owner and permissions"
            ) from error
        return parse_docker_config(raw, where=str(self._file))

    async def _ask_helper(self, helper: str, host: str) -> RegistryCredentials | None:
        result = await run_command(
            [f"docker-credential-{helper}", "get"],
            folder=self._home,
            limits=HELPER_LIMITS,
            environment=self._helper_environment,
            stdin=render_helper_request(host),
        )
        if result.ok:
            return parse_helper_answer(result.stdout)
        # Usually the helper does not know the server. Its output is not logged, because it may contain
        # secrets.
        _log.info(
            "credential helper gave nothing",
            helper=helper,
            host=host,
            exit_code=result.exit_code,
            limit=result.limit,
        )
        return None
