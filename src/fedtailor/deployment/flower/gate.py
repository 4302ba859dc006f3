"""The gate before Flower's server: sites reach what sites need, and nothing else.

Flower serves everything at one port: the messages of sites, for which they prove who they are, and
the control interface, which has no login. Whoever reaches that interface can run a program on the
server and at every site. So the SuperLink listens on this machine only, and the gate passes on the
requests of sites. It also notes which of them have said good-bye.

The gate knows the registered keys, and Flower signs every request in its headers. So a site's
requests have a pool of their own, which nobody else can fill, and the large messages. What anybody
else sends must be small and quick, and little of it is passed on at once: Flower itself refuses it,
and tells a site that is not registered yet why.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import ssl
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeRequest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedtailor.core.errors import RunError
from fedtailor.deployment.flower.goodbyes import Goodbyes
from fedtailor.deployment.limits import LARGEST_BODY

_COMES = "/v1/fleet/activate-node"
_GOES = "/v1/fleet/deactivate-node"
_ALLOWED = re.compile(r"/health|/v1/fleet/[a-z-]+")
"""The paths of sites' requests, as they come: ``/v1/fleet/../control`` is none of them."""
_OF_ONE_CONNECTION = frozenset(
    {"connection", "host", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
)
"""Headers that are not passed on."""
_SECONDS = 120.0
"""For which the SuperLink may be silent."""

_CONNECTION_SECONDS = 10.0
"""In which a new connection must agree on keys, and in which the headers of a request must come."""
_HEADER_BYTES = 16 * 1024
_BODY_SECONDS = 60.0
"""In which the body of a site's request must come."""
_SMALL_SECONDS = 5.0
"""The same for anybody else, and for a site that comes or goes."""
_SMALL_BYTES = 16 * 1024
"""Of such a body."""
_STRANGERS = 16
"""Requests of all strangers that are passed on at the same time."""
_OF_ONE_SITE = 16
"""Requests of one site that are passed on at the same time; Flower sends 5."""
_OF_ONE_ADDRESS = 64
"""Open connections from one address."""
_COLLECTION_SECONDS = 2.0
"""Between two collections of the memory of connections that have ended."""
_CONNECTIONS = 512
"""Open connections from all addresses from which no site has spoken."""


class Keys:
    """The registered keys: ``nodes.json``, which names the node of each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = 0
        self._keys: dict[bytes, ec.EllipticCurvePublicKey] = {}

    def signer(self, headers: Mapping[str, str]) -> bytes | None:
        """Return the registered key with which a request is signed; None: it is not.

        Flower checks more, such as when it was signed.
        """
        try:
            name = b64decode(headers["flwr-public-key"], validate=True)
            signature = b64decode(headers["flwr-signature"], validate=True)
            time = headers["flwr-timestamp"].encode()
            self._read()
            self._keys[name].verify(signature, time, ec.ECDSA(hashes.SHA256()))
        except (KeyError, ValueError, InvalidSignature):
            return None
        return name

    def _read(self) -> None:
        """Read the keys again if the file has changed."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed == self._changed:
            return

        keys = {}
        for text in json.loads(self._path.read_bytes()):
            key = serialization.load_ssh_public_key(text.encode())
            if isinstance(key, ec.EllipticCurvePublicKey):
                form = serialization.PublicFormat.SubjectPublicKeyInfo
                keys[key.public_bytes(serialization.Encoding.PEM, form)] = key

        self._keys = keys
        self._changed = changed


class Room:
    """How many connections are open, and from where."""

    def __init__(self) -> None:
        self.sites: set[str] = set()
        """Addresses from which a site has spoken: strangers elsewhere take no place from them."""
        self._open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Return whether there is room for another connection, and count it."""
        strangers = sum(self._open.values()) - sum(self._open[site] for site in self.sites)
        is_full = address not in self.sites and strangers >= _CONNECTIONS
        if is_full or self._open[address] >= _OF_ONE_ADDRESS:
            return False

        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection no more."""
        self._open[address] -= 1
        self._open += Counter()


class _Connection(socket.socket):
    """A connection that leaves the room when it is closed."""

    room: Room
    address = ""

    def close(self) -> None:
        if self.address:
            self.room.leave(self.address)
            self.address = ""
        super().close()


class Listener(socket.socket):
    """A listening socket that closes connections for which there is no room.

    It does so before keys are exchanged, so that half-open connections count too.
    """

    room: Room

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection for which there is room."""
        while True:
            connection, peer = super().accept()
            if self.room.enter(peer[0]):
                counted = _Connection(fileno=connection.detach())
                counted.room = self.room
                counted.address = peer[0]
                return counted, peer

            connection.close()


class _Timed(asyncio.Protocol):
    """A connection on which headers must come in time; uvicorn itself waits without end."""

    def __init__(self, **options: Any) -> None:
        self._inner = H11Protocol(**options)
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)
        if self._timer is not None:
            self._timer.cancel()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.flow.pause_writing()

    def resume_writing(self) -> None:
        self._inner.flow.resume_writing()

    def _watch(self) -> None:
        """Let the time run while no request has come up to its body."""
        request = self._inner.cycle
        is_waiting = request is None or request.response_complete
        if is_waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_CONNECTION_SECONDS, self._transport.abort)
        elif not is_waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait long for half-open TLS, and keep no trace of it."""

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        seconds = {"ssl_handshake_timeout": _CONNECTION_SECONDS, "ssl_shutdown_timeout": 5.0}
        create: Any = super().create_server
        self._collect()
        return await create(*arguments, **options, **seconds)

    def _collect(self) -> None:
        """Free the buffers of connections that have ended, now and again.

        Each has 256 KiB in a cycle of few objects, so Python sees no reason to look for it.
        """
        gc.collect()
        self.call_later(_COLLECTION_SECONDS, self._collect)


class Gate:
    """The gate as an application.

    Args:
        inner: where the SuperLink listens: ``127.0.0.1:port``.
        certificate: of the authority that has signed the SuperLink's.
        keys: of the registered sites.
        goodbyes: is told which sites come and go.
        room: is told from which addresses they speak.
    """

    def __init__(
        self, inner: str, certificate: Path, keys: Keys, goodbyes: Goodbyes, room: Room
    ) -> None:
        self._keys = keys
        self._goodbyes = goodbyes
        self._room = room
        self._client = httpx.AsyncClient(
            base_url=f"https://{inner}",
            verify=ssl.create_default_context(cafile=str(certificate)),
            timeout=_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_STRANGERS),
        )
        self._strangers = asyncio.Semaphore(_STRANGERS)
        self._sites: dict[bytes, asyncio.Semaphore] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        path = scope["raw_path"].decode("latin-1")
        if scope["method"] not in ("GET", "POST") or _ALLOWED.fullmatch(path) is None:
            await _refuse(404, "not for sites")(scope, receive, send)
            return

        try:
            site = self._keys.signer(request.headers)
            if site is None:
                await self._pass_on_stranger(request, send)
            else:
                await self._pass_on_site(site, request, send)
        except (ClientDisconnect, TimeoutError, _TooLargeError):
            await _refuse(413, "too large or too slow")(scope, receive, send)
        except httpx.HTTPError:
            await _refuse(503, "the server is starting")(scope, receive, send)

    async def _pass_on_stranger(self, request: Request, send: Any) -> None:
        # A stranger takes a place only when the whole request is there.
        body = await _read_small(request)
        if self._strangers.locked():
            refusal = _refuse(503, "too many requests without a registered key")
            await refusal(request.scope, request.receive, send)
            return

        async with self._strangers:
            await self._pass_on(request, body, send)

    async def _pass_on_site(self, site: bytes, request: Request, send: Any) -> None:
        if request.client is not None:
            self._room.sites.add(request.client.host)

        # Large messages stream through, so that they take little memory here.
        async with self._sites.setdefault(site, asyncio.Semaphore(_OF_ONE_SITE)):
            if request.url.path in (_COMES, _GOES):
                await self._pass_on(request, await _read_small(request), send)
            else:
                await self._pass_on(request, _limited(request, LARGEST_BODY, _BODY_SECONDS), send)

    async def _pass_on(
        self, request: Request, body: bytes | AsyncIterator[bytes], send: Any
    ) -> None:
        path = request.scope["raw_path"].decode("latin-1")
        headers = _passed_on(request.headers)
        onward = self._client.build_request(request.method, path, headers=headers, content=body)
        answer = await self._client.send(onward, stream=True)
        try:
            if isinstance(body, bytes) and answer.is_success:
                await answer.aread()
                self._note_move(path, body, answer.content)
                kind = answer.headers.get("content-type")
                response = Response(answer.content, answer.status_code, media_type=kind)
            else:
                headers = _passed_on(answer.headers)
                response = StreamingResponse(answer.aiter_raw(), answer.status_code, headers)
            await response(request.scope, request.receive, send)
        finally:
            await answer.aclose()

    def _note_move(self, path: str, body: bytes, answer: bytes) -> None:
        """Note that a site has come or gone: the SuperLink has checked its key."""
        # A full disk must not keep sites out.
        with suppress(RunError):
            if path == _COMES:
                come = ActivateNodeResponse.FromString(answer)
                self._goodbyes.note(come.node_id, is_here=True)
            elif path == _GOES:
                gone = DeactivateNodeRequest.FromString(body)
                self._goodbyes.note(gone.node_id, is_here=False)


class _TooLargeError(Exception):
    """A body has more bytes than it may."""


async def _read_small(request: Request) -> bytes:
    """Return the body of a request, for which little room and time is given."""
    return b"".join([chunk async for chunk in _limited(request, _SMALL_BYTES, _SMALL_SECONDS)])


async def _limited(request: Request, size: int, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body of a request as it comes.

    Raises:
        _TooLargeError: it has more bytes than ``size``.
        TimeoutError: it has not come within this time.
    """
    # What is announced is refused before it comes.
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > size:
        raise _TooLargeError

    end = asyncio.get_running_loop().time() + seconds
    chunks = request.stream()
    total = 0
    while True:
        async with asyncio.timeout_at(end):
            chunk = await anext(chunks, None)
        if chunk is None:
            return

        total += len(chunk)
        if total > size:
            raise _TooLargeError
        yield chunk


def _refuse(status: int, reason: str) -> Response:
    """Return a refusal, after which the connection is closed: its body may not have come."""
    return PlainTextResponse(f"{reason}\n", status, {"connection": "close"})


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OF_ONE_CONNECTION}


def open_gate(host: str, port: int, inner: str, folder: Path, nodes: Path, goodbyes: Path) -> None:
    """Listen until the process is ended.

    Args:
        host: the address to listen at.
        port: the port.
        inner: where the SuperLink listens.
        folder: holds the certificates and the server's key.
        nodes: the file that names the registered keys.
        goodbyes: the file in which is noted who has said good-bye.
    """
    # What is there before the first connection stays, so collections need not look at it.
    gc.freeze()
    room = Room()
    with Listener(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.room = room
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        config = uvicorn.Config(
            Gate(inner, folder / "ca.crt", Keys(nodes), Goodbyes(goodbyes), room),
            http=_Timed,
            ws="none",
            lifespan="off",
            h11_max_incomplete_event_size=_HEADER_BYTES,
            ssl_certfile=str(folder / "server.pem"),
            ssl_keyfile=str(folder / "server.key"),
            access_log=False,
            log_level="error",
            server_header=False,
        )

        # The log names no garbage that strangers send: they could fill the disk with it.
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(uvicorn.Server(config).serve(sockets=[listener]))


def main() -> None:
    """Open the gate; the arguments are those of :func:`open_gate`."""
    host, port, inner, *paths = sys.argv[1:]
    folder, nodes, goodbyes = map(Path, paths)
    open_gate(host, int(port), inner, folder, nodes, goodbyes)


if __name__ == "__main__":
    main()
