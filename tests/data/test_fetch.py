"""Fetching from a server on this machine, which can be told to misbehave."""

import errno
import gzip
import hashlib
import io
import os
import socket
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.datasets import known
from fedtailor.data.download import fetch as fetching
from fedtailor.data.download import transfer, unpack
from fedtailor.data.download.fetch import fetch
from fedtailor.data.download.sources import DOWNLOADS, ELSEWHERE, Download

CONTENT = bytes(range(256)) * 2000


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says after how many bytes each coming answer breaks off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.ranges = True
        self.lengths = True
        self.extra = b""
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.asked.append(wanted)
        content = self.server.files.get(self.path.lstrip("/"))
        status = (
            self.server.statuses.pop(0)
            if self.server.statuses
            else 200
            if content is not None
            else 404
        )
        if status != 200 or content is None:
            self.send_error(status)
            return
        start = (
            int(wanted.removeprefix("bytes=").removesuffix("-"))
            if wanted and self.server.ranges
            else 0
        )
        if wanted and self.server.ranges and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start : start + cut] + self.server.extra)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def published(server: Server, content: bytes = CONTENT, algorithm: str = "sha256", **more) -> dict:
    """Let the server have a file; return a table with it as the only one of MNIST."""
    path = more.pop("path", "MNIST/raw/file.bin")
    server.files[Path(path).name] = content
    checksum = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    return {"mnist": (Download(f"{server.url}/{Path(path).name}", path, checksum, **more),)}


def refusal(folder: Path, table: dict) -> DataError:
    with pytest.raises(DataError) as caught:
        fetch("mnist", folder, downloads=table)
    return caught.value


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_is_put_in_place_once(
    server: Server, tmp_path: Path, algorithm: str, lengths: bool
) -> None:
    server.lengths = lengths
    table = published(server, algorithm=algorithm, size=len(CONTENT))
    seen: list[tuple[str, int, int]] = []
    for _ in range(2):
        paths = fetch(
            "mnist", tmp_path / "new", progress=lambda *told: seen.append(told), downloads=table
        )
        assert paths == [tmp_path / "new/MNIST/raw/file.bin"]
    assert paths[0].read_bytes() == CONTENT and server.asked == [""]
    assert seen[0] == ("file.bin", 0, len(CONTENT)) and seen[-1] == (
        "file.bin",
        len(CONTENT),
        len(CONTENT),
    )
    assert [path.name for path in paths[0].parent.iterdir()] == ["file.bin"]


def test_a_decompressed_file_is_taken_as_it_is(server: Server, tmp_path: Path) -> None:
    table = published(server, path="MNIST/raw/images.gz")
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/images").write_text("anything")
    assert (
        fetch("mnist", tmp_path, downloads=table) == [tmp_path / "MNIST/raw/images"]
        and not server.asked
    )


def test_a_wrong_checksum_names_both_and_removes_the_file(server: Server, tmp_path: Path) -> None:
    table = published(server)
    server.files["file.bin"] = CONTENT[:-1] + b"!"
    error = refusal(tmp_path, table)
    assert table["mnist"][0].checksum.removeprefix("sha256:") in error.message
    assert (
        hashlib.sha256(server.files["file.bin"]).hexdigest() in error.message
        and "removed" in error.message
    )
    assert not list((tmp_path / "MNIST/raw").iterdir())
    server.files["file.bin"] = CONTENT
    assert fetch("mnist", tmp_path, downloads=table)


def test_a_file_that_is_another_one_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/file.bin").write_text("mine")
    error = refusal(tmp_path, published(server, algorithm="md5"))
    assert "exists, but its md5 is" in error.message and not server.asked
    assert (tmp_path / "MNIST/raw/file.bin").read_text() == "mine"


def test_a_connection_that_breaks_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 2000, 0, 5000]
    (path,) = fetch("mnist", tmp_path, downloads=published(server))
    assert path.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=1000-", "bytes=3000-", "bytes=3000-", "bytes=8000-"]


def test_a_connection_that_keeps_breaking_says_how_to_resume(
    server: Server, tmp_path: Path
) -> None:
    server.cuts = [1000, 0, 0]
    table = published(server)
    error = refusal(tmp_path, table)
    assert (
        "after 1,000 bytes" in error.message
        and "same command" in error.message
        and "127.0.0.1" in error.message
    )
    assert (tmp_path / "MNIST/raw/file.bin.part").stat().st_size == 1000
    (path,) = fetch("mnist", tmp_path, downloads=table)
    assert path.read_bytes() == CONTENT and server.asked[-1] == "bytes=1000-"


@pytest.mark.parametrize("cuts", [[1000], [1000, 3000, 2000]])
def test_a_server_without_ranges_starts_over(
    server: Server, tmp_path: Path, cuts: list[int]
) -> None:
    server.ranges, server.cuts = False, cuts
    (path,) = fetch("mnist", tmp_path, downloads=published(server))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [0, 7], ids=["complete", "too long"])
def test_a_part_that_is_complete_or_too_long(server: Server, tmp_path: Path, extra: int) -> None:
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/file.bin.part").write_bytes(CONTENT + bytes(extra))
    (path,) = fetch("mnist", tmp_path, downloads=published(server))
    assert (
        path.read_bytes() == CONTENT
        and server.asked == [f"bytes={len(CONTENT) + extra}-", ""][: 1 + bool(extra)]
    )


def test_a_missing_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    table = published(server)
    del server.files["file.bin"]
    error = refusal(tmp_path, table)
    assert "404" in error.message and f"{server.url}/file.bin" in error.message and error.got == 404
    assert server.asked == [""]


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert fetch("mnist", tmp_path, downloads=published(server))
    server.statuses = [500] * 3
    assert "500" in refusal(tmp_path / "other", published(server)).message


def test_a_server_that_is_not_there(server: Server, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        error = refusal(tmp_path, {"mnist": (Download(url, "file", "md5:0"),)})
    assert (
        "cannot be reached" in error.message
        and "refused" in error.message
        and "0x" not in error.message
    )
    assert error.message.endswith(f"put {url} into '{tmp_path}'.")


@pytest.mark.parametrize("size", [len(CONTENT), 0], ids=["known", "told by the server"])
def test_no_space_is_said_before_a_byte_is_written(
    server: Server, tmp_path: Path, monkeypatch, size: int
) -> None:
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    error = refusal(tmp_path, published(server, size=size))
    assert "needs 512,000 more bytes" in error.message and "1,000 left" in error.message
    assert len(server.asked) == (0 if size else 1) and not list((tmp_path / "MNIST/raw").iterdir())


@pytest.mark.parametrize("lengths", [True, False], ids=["announced", "not announced"])
def test_more_than_the_known_size_is_not_written(
    server: Server, tmp_path: Path, lengths: bool
) -> None:
    server.lengths = lengths
    error = refusal(tmp_path, published(server, size=len(CONTENT) - 1))
    got = f"{len(CONTENT):,}" if lengths else "more"
    assert f"expected at most {len(CONTENT) - 1:,} bytes, got {got}." in error.message
    assert server.asked == [""] and not list((tmp_path / "MNIST/raw").iterdir())


@pytest.mark.parametrize("lengths", [True, False], ids=["announced", "not announced"])
def test_a_file_of_unknown_size_has_a_limit_too(
    server: Server, tmp_path: Path, monkeypatch, lengths: bool
) -> None:
    monkeypatch.setattr(fetching, "MAX_UNKNOWN", 300_000)  # within the second chunk
    server.lengths = lengths
    error = refusal(tmp_path, published(server))
    assert "expected at most 300,000 bytes" in error.message and not list(
        (tmp_path / "MNIST/raw").iterdir()
    )


def test_more_than_the_announced_rest_is_not_written(server: Server, tmp_path: Path) -> None:
    server.lengths, server.extra, server.cuts = False, b"endless" * 1000, [len(CONTENT)]
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/file.bin.part").write_bytes(CONTENT[:1000])
    error = refusal(tmp_path, published(server))
    assert (
        server.asked == ["bytes=1000-"]
        and f"at most {len(CONTENT):,} bytes, got more" in error.message
    )


def test_space_is_checked_while_a_file_of_unknown_size_comes(
    server: Server, tmp_path: Path, monkeypatch
) -> None:
    server.lengths = False
    free = iter(
        [10**9, 10**9, 10**9, 1000]
    )  # before the request, at its start, after the first chunk
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free)))
    error = refusal(tmp_path, published(server))
    assert "1,000 left" in error.message and next(free, None) is None


def test_a_disk_that_gets_full(server: Server, tmp_path: Path, monkeypatch) -> None:
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer, "transfer", full)
    error = refusal(tmp_path, published(server))
    assert "No space left on device" in error.message and "same command" in error.message


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "MNIST").write_text("a file")
    error = refusal(tmp_path, published(server))
    assert "cannot write" in error.message and "MNIST/raw" in error.message


def tar_of(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return stream.getvalue()


def zip_of(*members: tuple[str, bytes], mode: int = 0o100644) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, content)
    return stream.getvalue()


GOOD = (("top/last", b"1"), ("top/sub/other", b"22"))


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("strip", ["", "top"])
def test_an_archive_is_unpacked_and_removed(
    server: Server, tmp_path: Path, kind: str, strip: str
) -> None:
    prefix = "in/" if strip else "in/top/"
    content = tar_of(*GOOD) if kind == "tar" else zip_of(*GOOD)
    more = {
        "unpack": kind,
        "into": "in",
        "strip": strip,
        "unpacked": 2,
        "gives": (f"{prefix}last",),
    }
    table = published(server, content, path="in/file.archive", **more)
    for _ in range(2):
        assert fetch("mnist", tmp_path, downloads=table) == [tmp_path / prefix / "last"]
    assert (tmp_path / prefix / "sub/other").read_bytes() == b"22" and server.asked == [""]
    assert sorted(path.name for path in (tmp_path / "in").rglob("*") if path.is_file()) == [
        "last",
        "other",
    ]


def test_what_stands_for_all_is_put_in_place_last(tmp_path: Path, monkeypatch) -> None:
    moved: list[str] = []
    replace = os.replace
    monkeypatch.setattr(
        os,
        "replace",
        lambda source, target: (moved.append(Path(target).name), replace(source, target)),
    )
    (tmp_path / "a").write_bytes(tar_of(*GOOD))
    unpack.unpack(
        tmp_path / "a", "tar", tmp_path, max_bytes=3, last=lambda path: path.name == "last"
    )
    assert moved == ["other", "last"]


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("top/link")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


NAMES = ("../out", "top/../../out", "/abs", "top//x", "C:\\x", "a\\..\\b", "new\nline", "", "..")
HOSTILE = [
    *((tar_of((name, b"1")), "tar", "names of files within a folder") for name in NAMES if name),
    *(
        (zip_of((name, b"1")), "zip", "names of files within a folder")
        for name in NAMES
        if name != "new\x00"
    ),
    *(
        (tar_of(link(kind)), "tar", "plain files only")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    ),
    (zip_of(("link", b"/etc/passwd"), mode=0o120777), "zip", "plain files only"),
    (tar_of(("a", b"1"), ("a", b"2")), "tar", "each name once"),
    (tar_of(("a", bytes(5))), "tar", "at most 4 bytes"),
    (zip_of(("a", bytes(10**6))), "zip", "at most 4 bytes"),
    (b"no archive", "tar", "an intact archive"),
    (b"no archive", "zip", "an intact archive"),
    (tar_of(("a", os.urandom(5000)))[:-2000], "tar", "an intact archive"),
    (zip_of(("a", b"1234")).replace(b"\x05\x06", b"\x05\x07"), "zip", "an intact archive"),
]


@pytest.mark.parametrize(("content", "kind", "expected"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch, content: bytes, kind: str, expected: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "archive").write_bytes(content)
    limit = 10**5 if expected == "an intact archive" else 4
    with pytest.raises(DataError, match=expected) as caught:
        unpack.unpack(folder / "archive", kind, folder, max_bytes=limit)
    assert caught.value.path == str(folder / "archive")
    assert [path.name for path in folder.iterdir()] == ["archive"] and len(
        list(tmp_path.iterdir())
    ) == 1


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(unpack, "MAX_FILES", 1)
    (tmp_path / "archive").write_bytes(tar_of(*GOOD))
    with pytest.raises(DataError, match="at most 1 files"):
        unpack.unpack(tmp_path / "archive", "tar", tmp_path, max_bytes=10)


def test_an_archive_without_its_files_is_refused(server: Server, tmp_path: Path) -> None:
    table = published(
        server, tar_of(*GOOD), path="file.tar", unpack="tar", unpacked=10, gives=("top/absent",)
    )
    assert "expected the file 'top/absent'" in refusal(tmp_path, table).message


def test_names_and_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
    for name in ("digits", "synthetic"):
        assert fetch(name, tmp_path) == []
    for name in ("mnist_m", "syn_digits", "femnist"):
        with pytest.raises(DataError, match="cannot be fetched") as caught:
            fetch(name, tmp_path)
        assert "http" in caught.value.message and str(tmp_path) in caught.value.message


def test_the_table_is_consistent() -> None:
    for name, entry in known.DATASETS.items():
        assert (name in DOWNLOADS or name in ELSEWHERE) == bool(entry.files), name
    for name, downloads in DOWNLOADS.items():
        for download in downloads:
            algorithm, _, digits = download.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[algorithm] and int(digits, 16)
            assert bool(download.unpack) == bool(download.gives) == bool(download.unpacked)
            folders = {pattern.split("/")[0] for pattern in known.DATASETS[name].files}
            assert {path.split("/")[0] for path in download.gives or (download.path,)} <= folders


def test_published_files_are_read_where_they_are(data_dir: Path) -> None:
    """The table's checksums, on the original files where they are kept compressed."""
    found = 0
    for name in ("mnist", "fashion_mnist"):
        for download in DOWNLOADS[name]:
            path = data_dir / download.path
            if path.is_file():
                found += 1
                assert (
                    len(gzip.decompress(path.read_bytes())) > 0
                    and path.stat().st_size == download.size
                )
                assert (
                    f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" == download.checksum
                )
    if not found:
        pytest.skip("no compressed originals")
