"""The status of a running federation at a port of this machine: the page, its JSON, and metrics.

It can be read only, by whoever knows the token of ``status.token``. It reads the files that
:mod:`fedtailor.deployment.status` writes, in threads of its own, so no round waits for it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

from fedtailor.core.atomic import write_private
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.core.reading import read_file, read_object
from fedtailor.deployment.status import PAGE_FILE, STATUS_FILE
from fedtailor.deployment.status_metrics import to_metrics

TOKEN_FILE = "status.token"
"""In the folder of a server, readable by its owner only; remove it to have another token."""
_ADDRESS = "127.0.0.1"
_HOSTS = frozenset({"localhost", "127.0.0.1"})
"""Names by which this machine calls itself: a page elsewhere whose name leads here has another."""
_LARGEST_PAGE = 2**26
_MOST_READERS = 16
"""Connections at the same time; more are closed."""
_PATIENCE = 5.0
"""Seconds for which a connection may be silent."""
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


def read_token(folder: Path) -> tuple[str, bool]:
    """Return the token of a server's folder, and whether it was made now.

    Raises:
        ConfigError: others may read its file, or it holds no token.
    """
    path = folder / TOKEN_FILE
    if not path.exists():
        token = secrets.token_urlsafe(24)
        write_private(path, token.encode() + b"\n")
        return token, True

    mode = path.stat().st_mode
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if mode & 0o077 or len(token) < 16 or not token.isascii():
        problem = "others may read it" if mode & 0o077 else "it holds no token"
        message = f"'{path}' cannot be used, because {problem}: remove it, and a new one is made."
        raise ConfigError(message, key="--status-port", path=path)
    return token, False


class StatusPort:
    """Serves the status of a folder while its block runs."""

    def __init__(self, folder: Path, port: int) -> None:
        """Listen on the loopback interface.

        Args:
            folder: of the server.
            port: 0: any that is free.

        Raises:
            ConfigError: the file of the token cannot be used.
            RunError: the port cannot be used.
        """
        self.token, self.is_new = read_token(folder)
        try:
            self._server = _Server((_ADDRESS, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            message = f"cannot listen on {_ADDRESS}, port {port}: {reason}."
            raise RunError(message, key="--status-port", got=port) from error

        self._server.folder = folder
        self._server.token = self.token
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """The address of the page, without the token."""
        return f"http://{_ADDRESS}:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 4 * _MOST_READERS
    folder: Path
    token: str

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(_MOST_READERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "fedtailor"
    sys_version = ""
    timeout = _PATIENCE
    error_content_type = _TEXT
    error_message_format = "%(message)s.\n"

    def do_GET(self) -> None:
        content = self._answer()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the address holds the token."""

    def _answer(self) -> bytes:
        """Send the head of an answer, and return its body."""
        path, _, query = self.path.partition("?")
        refusal = self._refusal(query)
        if refusal:
            return self._send(HTTPStatus.FORBIDDEN, _TEXT, f"{refusal}\n".encode())
        if path not in _PAGES:
            text = f"There is nothing here: {', '.join(_PAGES)}.\n"
            return self._send(HTTPStatus.NOT_FOUND, _TEXT, text.encode())

        kind, read = _PAGES[path]
        try:
            return self._send(HTTPStatus.OK, kind, read(self.server.folder))
        except DataError as error:
            text = f"There is no status yet: {error.message}\n"
            return self._send(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, text.encode())

    def _refusal(self, query: str) -> str:
        """Return why a request is refused; empty: it is not."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            return f"This page answers to the names {' and '.join(sorted(_HOSTS))} only."

        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        token = parse_qs(query).get("token", [bearer])[-1]
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            return f"The token of {TOKEN_FILE} is needed: ?token=... or Authorization: Bearer."
        return ""

    def _send(self, code: HTTPStatus, kind: str, content: bytes) -> bytes:
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        return content


def _read_page(folder: Path) -> bytes:
    return read_file(folder / PAGE_FILE, limit=_LARGEST_PAGE, within=folder)


def _read_status(folder: Path) -> bytes:
    return read_file(folder / STATUS_FILE, limit=_LARGEST_PAGE, within=folder)


def _read_metrics(folder: Path) -> bytes:
    return to_metrics(read_object(folder / STATUS_FILE, within=folder)).encode()


_PAGES: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "/": (_HTML, _read_page),
    "/status.json": (_JSON, _read_status),
    "/metrics": (_METRICS, _read_metrics),
}
