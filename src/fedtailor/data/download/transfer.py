"""The download of one file over HTTP, which resumes an interrupted one.

A library was tried for this: pooch 1.9 has no resume, no limit on the size and no retry that keeps
what has arrived, so that this module would stay, called by it, and the fetching code would grow.
"""

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
"""Seconds before each retry; the count starts again when a try gets further than all before it."""

_TIMEOUT = (15.0, 60.0)  # seconds to connect, and to wait for bytes
_CHUNK = 2**18


class _Retry(requests.RequestException):
    """A server's answer that is unusable now and may be usable at the next try."""


def transfer(url: str, part: Path, report: Callable[[int, int], None], *, limit: int) -> None:
    """Download ``url`` into ``part``; resume after the bytes in ``part`` if the server supports it.

    Args:
        url: http or https.
        part: keeps the downloaded bytes if the connection breaks.
        report: called with the downloaded bytes and the bytes of the whole file (0: unknown), first
            before any byte is written.
        limit: most bytes that the whole file may have.

    Raises:
        DataError: the server cannot be reached, does not have the file, or sends more than it
            announced or than ``limit`` (``part`` is removed), or the connection keeps breaking.
        OSError: the file cannot be written.
    """
    most = _size(part)
    failures = 0
    while True:
        try:
            _download(url, part, report, limit)
            return
        except (requests.RequestException, HTTPError) as reason:
            have = _size(part)
            if have > most:
                failures = 1
                most = have
            else:
                failures += 1

            if failures > len(PAUSES):
                raise _broken(url, part, reason) from reason

            time.sleep(PAUSES[failures - 1])


def _download(url: str, part: Path, report: Callable[[int, int], None], limit: int) -> None:
    """Try once to download the rest of the file."""
    have = _size(part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"

    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        start, total = _start_and_total(response, part, have)
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
        raise _Retry(f"the connection closed after {done} of {total} bytes")


def _start_and_total(response: requests.Response, part: Path, have: int) -> tuple[int, int]:
    """Return the position at which the answer starts, and the bytes of the whole file (0:
    unknown).
    """
    status = response.status_code
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else 0

    if status in (206, 416):
        found = re.fullmatch(
            r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", "")
        )
        if found and int(found[1] or found[2]) == have:
            return have, int(found[2])

        part.unlink()  # it is longer than the file, or the server would start elsewhere
        raise _Retry(f"the server answered {status} to a request for the rest")

    if status in (408, 425, 429) or status >= 500:
        raise _Retry(f"the server answered {status} {response.reason}")

    raise DataError(
        f"{response.url}: the server answered {status} {response.reason}; the file may have moved.",
        path=response.url,
        allowed="an answer with the file",
        got=status,
    )


def _too_long(url: str, part: Path, limit: int, got: str) -> DataError:
    """Remove the downloaded bytes and return the error for a file that is longer than it can be."""
    part.unlink(missing_ok=True)
    allowed = f"at most {limit:,} bytes"
    message = f"{url}: expected {allowed}, got {got}. The download was removed; the published file may have changed."
    return DataError(message, path=url, allowed=allowed, got=got)


def _broken(url: str, part: Path, reason: Exception) -> DataError:
    """Return the error for a connection that failed, or broke too often."""
    root: BaseException = reason
    while root.__context__ is not None:
        root = root.__context__

    text = (
        re.sub(r"<[^>]*>:? ?", "", str(root)) or type(root).__name__
    )  # without addresses of objects
    host = urlsplit(url).netloc
    have = _size(part)

    if have:
        message = (
            f"the connection to {host} broke ({text}) after {have:,} bytes. "
            "Run the same command again to resume the download."
        )
    else:
        by_hand = f"Without a network, put {url} into '{part.parent}'."
        message = f"{host} cannot be reached or does not answer ({text}). {by_hand}"

    return DataError(message, path=url, got=text)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
