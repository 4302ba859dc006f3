"""The gate before Flower's server: sites reach what sites need, and nothing else.

Flower serves everything at one port: the messages of sites, for which they prove who they are, and
the control interface, which has no login. Whoever reaches that interface can run a program on the
server and at every site. So the SuperLink listens on this machine only, and the gate passes on the
requests of sites. It also notes which of them have said good-bye.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeRequest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower.goodbyes import Goodbyes

_COMES = "/v1/fleet/activate-node"
_GOES = "/v1/fleet/deactivate-node"
_LONGEST = 65_536
"""Bytes of a request to come or to go."""
_ALLOWED = re.compile(r"/health|/v1/fleet/[a-z-]+")
"""The paths of sites' requests, as they come: ``/v1/fleet/../control`` is none of them."""
_OF_ONE_CONNECTION = frozenset(
    {"connection", "host", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
)
"""Headers that are not passed on."""
_SECONDS = 120.0
"""For which the SuperLink may be silent."""


def make_gate(inner: str, certificate: Path, goodbyes: Goodbyes) -> Starlette:
    """Return the gate as an application.

    Args:
        inner: where the SuperLink listens: ``127.0.0.1:port``.
        certificate: of the authority that has signed the SuperLink's.
        goodbyes: is told which sites come and go.
    """
    client = httpx.AsyncClient(
        base_url=f"https://{inner}",
        verify=ssl.create_default_context(cafile=str(certificate)),
        timeout=_SECONDS,
    )

    async def pass_on(request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")
        if _ALLOWED.fullmatch(path) is None:
            return PlainTextResponse("not for sites\n", status_code=404)

        if path in (_COMES, _GOES):
            return await move(request, path)

        # Both bodies stream through, so that large messages take little memory here.
        onward = client.build_request(
            request.method, path, headers=_passed_on(request.headers), content=request.stream()
        )
        try:
            answer = await client.send(onward, stream=True)
        except httpx.HTTPError:
            return _is_starting()

        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            _passed_on(answer.headers),
            background=BackgroundTask(answer.aclose),
        )

    async def move(request: Request, path: str) -> Response:
        """Pass on that a site comes or goes, and note it if the SuperLink believes it."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST:
                return PlainTextResponse("too long\n", status_code=413)

        headers = _passed_on(request.headers)
        try:
            answer = await client.request(request.method, path, headers=headers, content=body)
        except httpx.HTTPError:
            return _is_starting()

        # The SuperLink has checked the key of the site. A full disk must not keep sites out.
        if answer.is_success:
            with suppress(RunError):
                if path == _COMES:
                    come = ActivateNodeResponse.FromString(answer.content)
                    goodbyes.note(come.node_id, is_here=True)
                else:
                    gone = DeactivateNodeRequest.FromString(body)
                    goodbyes.note(gone.node_id, is_here=False)

        kind = answer.headers.get("content-type")
        return Response(answer.content, answer.status_code, media_type=kind)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    return Starlette(
        routes=[Route("/{path:path}", pass_on, methods=["GET", "POST"])], lifespan=lifespan
    )


def _is_starting() -> Response:
    return PlainTextResponse("the server is starting\n", status_code=503)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OF_ONE_CONNECTION}


def main() -> None:
    """Open the gate.

    Arguments are its address and port, the SuperLink's address, the keys, the file of good-byes.
    """
    host, port, inner, folder, goodbyes = sys.argv[1:]
    keys = Path(folder)
    uvicorn.run(
        make_gate(inner, keys / "ca.crt", Goodbyes(Path(goodbyes))),
        host=host,
        port=int(port),
        ssl_certfile=str(keys / "server.pem"),
        ssl_keyfile=str(keys / "server.key"),
        access_log=False,
        log_level="warning",
        server_header=False,
    )


if __name__ == "__main__":
    main()
