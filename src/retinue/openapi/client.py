"""Calls an HTTP API: sends the arguments of a skill as a request and reads the response."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from retinue.core.call import Answer, Call
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    NotAuthenticatedError,
    RemoteFaultError,
    UnknownSkillError,
)
from retinue.core.record import Listing, Skill
from retinue.core.text import suggest
from retinue.mesh.channel import Channel
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.schema.checks import find_output_problems
from retinue.openapi.codec.api import Api
from retinue.openapi.codec.operations import Operation
from retinue.openapi.codec.requests import render_request
from retinue.openapi.codec.responses import TOO_LARGE_REMEDY, as_documented, read_response
from retinue.openapi.codec.security import RequestCredentials, choose_credentials, origin_of
from retinue.web.transport import (
    MAX_RESPONSE_BYTES,
    HttpRequester,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
)

DEFAULT_TIMEOUT_S: Final = 60.0


class ApiClient:
    """Calls the operations of one API.

    ``environment`` gives the values of the variables that the API's security schemes name. ``http`` holds the
    URL guard and the limit on a response. Credentials go to the origin of the API's first server and to those
    of ``key_origins``, and to no other that its document names. A response that differs from the document is
    told in a warning; with ``strict`` it is returned as it is, for the check of outputs. Nothing of the mesh
    goes out: no token, no trace, no caller.
    """

    def __init__(
        self,
        http: HttpRequester,
        api: Api,
        environment: Mapping[str, str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        strict: bool = False,
        key_origins: Sequence[str] = (),
    ) -> None:
        self._http = http
        self._api = api
        self._environment = environment
        self._timeout_s = timeout_s
        self._max_response_bytes = max_response_bytes
        self._strict = strict
        self._key_origins = frozenset(origin_of(url) for url in (api.server, *key_origins) if url)
        self._operations = {operation.skill.id: operation for operation in api.operations}

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt of a call, as `Invoker`; an API makes no further calls in the mesh."""
        with admitted.forward() as outgoing:
            outgoing.record_usage(0)
            return await self.call(skill.id, call.arguments, deadline=call.deadline)

    async def call(self, skill_id: str, arguments: object, *, deadline: float | None = None) -> Answer:
        """Call one operation; ``deadline`` is a time of the event loop's clock.

        Raises UnknownSkillError, InvalidParametersError, NotAuthenticatedError without credentials,
        CallTimedOutError, AgentUnreachableError, BusyError and RemoteFaultError.
        """
        operation = self._operations.get(skill_id)
        if operation is None:
            raise UnknownSkillError(skill_id, near=suggest(skill_id, self._operations))
        api = self._api
        credentials = self._find_credentials(operation)
        request = render_request(operation, arguments, credentials)
        timeout_s, layer, setting = self._timeout_s, f"API {api.name}", f"the time limit of {api.name}"
        if deadline is not None:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise CallTimedOutError(skill_id, 0, layer="caller", setting="the call's timeout")
            if left_s < timeout_s:
                timeout_s, layer, setting = left_s, "caller", "the call's timeout"
        try:
            response = await self._http.request(
                request.method,
                request.url,
                headers=request.headers,
                body=request.body,
                timeout_s=timeout_s,
                max_response_bytes=self._max_response_bytes,
                what=skill_id,
                layer=layer,
                setting=setting,
            )
        except UrlRefusedError as error:
            refused = AgentUnreachableError(api.name, operation.server, error.cause, sent=False)
            refused.remedy = "use a public server, or allow private addresses for this import"
            raise refused from error
        except ResponseTooLargeError as error:
            data = {"type": "too_large", "limit": error.limit_bytes, "remedy": TOO_LARGE_REMEDY}
            raise RemoteFaultError(api.name, -32603, f"{api.name}: {error.cause}", data) from error
        except TransportError as error:
            lost = AgentUnreachableError(api.name, operation.server, error.cause, sent=error.sent)
            lost.remedy = f"check that {operation.server} is up and can be reached from here"
            raise lost from error
        answer = read_response(operation, api.name, response.status, response.headers, response.body)
        if self._strict:
            return answer
        problems = find_output_problems(operation.skill, answer.value)
        return as_documented(answer, operation.skill.output_schema, problems)

    def _find_credentials(self, operation: Operation) -> RequestCredentials:
        """The credentials for the server of an operation; raises NotAuthenticatedError."""
        api, origin = self._api, origin_of(operation.server)
        if origin in self._key_origins:
            return choose_credentials(operation.title, operation.security, api.schemes, self._environment)
        if not operation.security or () in operation.security:
            return RequestCredentials({}, {}, {})
        raise NotAuthenticatedError(
            f"{operation.title} is at {origin}, and the credentials of {api.name} go to "
            f"{origin_of(api.server)} only",
            remedy="if they are for that server too, import it again with "
            f"--key-origin {origin}, or set key_origins in the table imports.{api.name}",
        )
