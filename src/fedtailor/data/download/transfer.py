"""Download one file over HTTP: go on where an earlier try stopped, and say in words what went wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError

from fedtailor.core.errors import DataError

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each new try; the count starts again when more has come than ever before."""

_TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for bytes
_CHUNK = 2**18


class _Unusable(requests.RequestException):
    """The answer of a server that may be a better one next time."""


def transfer(url: str, part: Path, report: Callable[[int, int], None], *, limit: int) -> None:
    """Download ``url`` into ``part``, after what is there already if the server can start in the middle.

    Args:
        url: http or https.
        part: keeps what has come if the connection breaks.
        report: called with the bytes that are there and the bytes of the whole file (0: not known), and before any
            are written.
        limit: most bytes that the whole file may have.

    Raises:
        DataError: the server cannot be reached, does not have the file or sends more than it said or than ``limit``
            (what came is removed), or the connection keeps breaking.
        OSError: the file cannot be written.
    """
    most, failures = _size(part), 0
    while True:
        try:
            _download(url, part, report, limit)
            return
        except (requests.RequestException, HTTPError) as reason:
            failures = 1 if _size(part) > most else failures + 1
            most = max(most, _size(part))
            if failures > len(PAUSES):
                raise _broken(url, part, reason) from reason
            time.sleep(PAUSES[failures - 1])


def _download(url: str, part: Path, report: Callable[[int, int], None], limit: int) -> None:
    """Make one try."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        start, total = _what_comes(response, part, have)
        if total > limit:
            raise _too_long(url, part, limit, f"{total:,}")
        report(start, total)
        if total and start == total:
            return
        done = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                done += len(chunk)
                if done > (total or limit):
                    raise _too_long(url, part, total or limit, "more")
                file.write(chunk)
                report(done, total)
    if total and done != total:
        raise _Unusable(f"{done} of {total} bytes came")


def _what_comes(response: requests.Response, part: Path, have: int) -> tuple[int, int]:
    """Return the position at which the answer starts, and the bytes of the whole file (0: not known)."""
    status = response.status_code
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else 0
    if status in (206, 416):
        found = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        if found and int(found[1] or found[2]) == have:
            return have, int(found[2])
        part.unlink()  # it is longer than the file, or not what the server would go on with
        raise _Unusable(f"the server answered {status} to a request for the rest")
    if status in (408, 425, 429) or status >= 500:
        raise _Unusable(f"the server answered {status} {response.reason}")
    raise DataError(
        f"{response.url}: the server answered {status} {response.reason}; the file may have moved.",
        path=response.url,
        allowed="an answer with the file",
        got=status,
    )


def _too_long(url: str, part: Path, limit: int, got: str) -> DataError:
    """Return the error for more bytes than the file can have; what came of them is removed."""
    part.unlink(missing_ok=True)
    allowed = f"at most {limit:,} bytes"
    message = f"{url}: expected {allowed}, got {got}. What came was removed; the published file may have changed."
    return DataError(message, path=url, allowed=allowed, got=got)


def _broken(url: str, part: Path, reason: Exception) -> DataError:
    """Return the error for a connection that could not be made, or broke too often."""
    root: BaseException = reason
    while root.__context__ is not None:
        root = root.__context__
    text = re.sub(r"<[^>]*>:? ?", "", str(root)) or type(root).__name__  # without addresses of objects
    host = urlsplit(url).netloc
    have = _size(part)
    if have:
        message = f"the connection to {host} broke ({text}); {have:,} bytes are there. The same command goes on there."
    else:
        by_hand = f"Without a network: put {url} into '{part.parent}'."
        message = f"{host} cannot be reached or does not answer ({text}). {by_hand}"
    return DataError(message, path=url, got=text)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
