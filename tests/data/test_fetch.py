"""Fetching from a server on this machine, which can be told to misbehave."""

import errno
import hashlib
import io
import os
import socket
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import fetch as fetching
from fedtailor.data.datasets import DATASETS, PublishedFile
from fedtailor.data.fetch import fetch

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says after how many bytes each coming answer breaks off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.has_ranges = True
        self.has_lengths = True
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        header = self.headers.get("Range", "")
        self.server.requests.append(header)
        content = self.server.files.get(self.path.lstrip("/"))
        if self.server.statuses or content is None:
            self.send_error(self.server.statuses.pop(0) if self.server.statuses else 404)
            return

        start = 0
        if header and self.server.has_ranges:
            start = int(header.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return

        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.server.has_lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start : start + cut])

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetching, "PAUSES", (0.0, 0.0))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def publish(server: Server, monkeypatch):
    """Return a function that lets the server have a file as the only one of MNIST."""

    def publish(
        content: bytes = CONTENT, path: str = "MNIST/raw/file.bin", **more
    ) -> PublishedFile:
        name = Path(path).name
        server.files[name] = content
        algorithm = more.pop("algorithm", "sha256")
        checksum = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
        download = PublishedFile(f"{server.url}/{name}", path, checksum, **more)
        entry = DATASETS["mnist"]._replace(downloads=(download,))
        monkeypatch.setattr(fetching, "DATASETS", {**DATASETS, "mnist": entry})
        return download

    return publish


def refusal(folder: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        fetch("mnist", folder)
    return caught.value


def content_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
@pytest.mark.parametrize("has_lengths", [True, False])
def test_a_file_is_put_in_place_once(server, publish, tmp_path, algorithm, has_lengths) -> None:
    server.has_lengths = has_lengths
    publish(algorithm=algorithm)
    progress: list[tuple[str, int, int]] = []
    for _ in range(2):
        paths = fetch("mnist", tmp_path, progress=lambda *values: progress.append(values))
        assert paths == [tmp_path / "MNIST/raw/file.bin"]
    assert content_of(tmp_path) == {"MNIST/raw/file.bin": CONTENT} and server.requests == [""]
    total = len(CONTENT) if has_lengths else 0
    assert progress[0] == ("file.bin", 0, total)
    assert progress[-1] == ("file.bin", len(CONTENT), total)


def test_a_decompressed_file_is_taken_as_it_is(server, publish, tmp_path) -> None:
    publish(path="MNIST/raw/images.gz")
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/images").write_text("anything")
    assert fetch("mnist", tmp_path) == [tmp_path / "MNIST/raw/images"] and not server.requests


def test_a_wrong_checksum_names_both_and_removes_the_file(server, publish, tmp_path) -> None:
    download = publish()
    server.files["file.bin"] = CONTENT[:-1] + b"!"
    message = refusal(tmp_path).message
    assert download.checksum.removeprefix("sha256:") in message
    assert hashlib.sha256(server.files["file.bin"]).hexdigest() in message
    assert content_of(tmp_path) == {}


def test_a_file_that_is_another_one_is_not_overwritten(server, publish, tmp_path) -> None:
    publish()
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/file.bin").write_text("mine")
    assert "sha256" in refusal(tmp_path).message and not server.requests
    assert content_of(tmp_path) == {"MNIST/raw/file.bin": b"mine"}


def test_a_connection_that_breaks_is_resumed(server, publish, tmp_path) -> None:
    publish()
    server.cuts = [1000, 2000, 0, 5000]
    fetch("mnist", tmp_path)
    assert content_of(tmp_path) == {"MNIST/raw/file.bin": CONTENT}
    expected = ["", "bytes=1000-", "bytes=3000-", "bytes=3000-", "bytes=8000-"]
    assert server.requests == expected


def test_a_connection_that_keeps_breaking_keeps_what_arrived(server, publish, tmp_path) -> None:
    publish()
    server.cuts = [1000, 0, 0]
    message = refusal(tmp_path).message
    assert "1,000 bytes" in message and "127.0.0.1" in message
    assert content_of(tmp_path) == {"MNIST/raw/file.bin.part": CONTENT[:1000]}
    fetch("mnist", tmp_path)
    assert server.requests[-1] == "bytes=1000-"


def test_a_server_without_ranges_starts_over(server, publish, tmp_path) -> None:
    publish()
    server.has_ranges = False
    server.cuts = [1000, 3000, 2000]
    fetch("mnist", tmp_path)
    assert content_of(tmp_path) == {"MNIST/raw/file.bin": CONTENT}


def test_a_part_that_is_complete(server, publish, tmp_path) -> None:
    publish()
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/file.bin.part").write_bytes(CONTENT)
    fetch("mnist", tmp_path)
    assert content_of(tmp_path) == {"MNIST/raw/file.bin": CONTENT}
    assert server.requests == [f"bytes={len(CONTENT)}-"]


def test_only_a_busy_server_is_asked_again(server, publish, tmp_path) -> None:
    publish()
    server.statuses = [503, 429]
    assert fetch("mnist", tmp_path)
    server.statuses = [500] * 3
    assert "500" in refusal(tmp_path / "other").message

    server.files.clear()
    server.requests.clear()
    error = refusal(tmp_path / "other")
    assert error.got == 404 and f"{server.url}/file.bin" in error.message
    assert server.requests == [""]


def test_a_server_that_is_not_there(publish, server, tmp_path, monkeypatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        entry = DATASETS["mnist"]._replace(downloads=(PublishedFile(url, "file", "md5:0"),))
        monkeypatch.setattr(fetching, "DATASETS", {"mnist": entry})
        message = refusal(tmp_path).message
    assert "refused" in message and "0x" not in message and f"'{tmp_path}'" in message


def test_a_disk_without_room(server, publish, tmp_path, monkeypatch) -> None:
    publish()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "transfer", full)
    assert "No space left on device" in refusal(tmp_path).message
    (tmp_path / "new").write_text("a file")
    assert "cannot write" in refusal(tmp_path / "new").message


def tar_of(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def zip_of(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


GOOD = (("top/last", b"1"), ("top/sub/other", b"22"))


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("strip", ["", "top"])
def test_an_archive_is_unpacked_and_removed(
    server, publish, tmp_path, monkeypatch, kind: str, strip: str
) -> None:
    prefix = "in/" if strip else "in/top/"
    content = tar_of(*GOOD) if kind == "tar" else zip_of(*GOOD)
    more = {"unpack": kind, "into": "in", "strip": strip}
    publish(content, path="in/file.archive", gives=(f"{prefix}last",), **more)
    moved: list[str] = []
    replace = os.replace

    def record(source: Path, target: Path) -> None:
        moved.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    for _ in range(2):
        assert fetch("mnist", tmp_path) == [tmp_path / prefix / "last"]
    assert content_of(tmp_path) == {f"{prefix}last": b"1", f"{prefix}sub/other": b"22"}
    assert server.requests == [""] and moved == ["file.archive", "other", "last"]


def test_names_and_instructions(tmp_path) -> None:
    with pytest.raises(ConfigError, match="'mnist'"):
        fetch("mnits", tmp_path)
    assert fetch("digits", tmp_path) == []
    with pytest.raises(DataError, match="http") as caught:
        fetch("femnist", tmp_path)
    assert str(tmp_path) in caught.value.message


def test_the_table_is_consistent() -> None:
    for name, entry in DATASETS.items():
        assert bool(entry.downloads or entry.elsewhere) == bool(entry.files), name
        for download in entry.downloads:
            algorithm, _, digits = download.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[algorithm] and int(digits, 16)
            assert bool(download.unpack) == bool(download.gives)
            folders = {pattern.split("/")[0] for pattern in entry.files}
            assert {path.split("/")[0] for path in download.gives or (download.path,)} <= folders
