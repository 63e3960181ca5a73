"""``POST /webhooks/{hook}``: the endpoint of webhooks that start workflows.

It needs no token: the signature of a request proves that its sender knows the secret of this webhook.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.errors import RetinueError
from retinue.hub.scheduling.trigger_book import HOOKS_PATH
from retinue.hub.scheduling.webhooks import Webhooks
from retinue.web.error_table import rest_fault


def webhook_route(webhooks: Webhooks) -> Route:
    """Create the route, which must run behind `SecurityMiddleware`.

    Responses: 202 with the run of a new event, 200 with that of one that was sent again; 400, 401, 403, 404,
    409, 413, 415, 422, 429, 500 with ``detail``.
    """

    async def answer(request: Request) -> Response:
        try:
            started = await webhooks.receive(
                request.path_params["hook"], request.headers, await request.body()
            )
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return JSONResponse({"run": started.run}, 202 if started.is_new else 200)

    return Route(f"{HOOKS_PATH}/{{hook}}", answer, methods=["POST"])
