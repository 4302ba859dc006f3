"""Rounds a minute at the open port of a server, beside each of five floods of strangers.

``python -m benchmarks.gate [--seconds 60]`` starts the server and the sites of
``fedtailor deploy demo`` on this machine, with Flower, and floods the port from other addresses of
the loopback device. Flooding takes processor time of the same machine, so the figures are lower
bounds. Needs the extra ``flower``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from fedtailor.deployment.demo import SITES, prepare
from fedtailor.deployment.flower.processes import free_port
from fedtailor.deployment.supervise import Supervisor

CONNECTIONS = 1000
ADDRESSES = 50
HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 400000000\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Visit = Callable[[Callable[..., Awaitable[Streams]]], Awaitable[None]]


async def slow_headers(connect: Callable[..., Awaitable[Streams]]) -> None:
    """Send a byte of the headers every two seconds."""
    reader, writer = await connect()
    for number in range(len(HEAD)):
        writer.write(HEAD[number : number + 1])
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            if not await asyncio.wait_for(reader.read(1), 2):
                return


async def slow_bodies(connect: Callable[..., Awaitable[Streams]]) -> None:
    """Announce a small body, and send a byte of it every two seconds."""
    reader, writer = await connect()
    writer.write(HEAD.replace(b"400000000", b"100") + b"\r\n")
    for _ in range(100):
        writer.write(b"x")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            if not await asyncio.wait_for(reader.read(1), 2):
                return


async def large_bodies(connect: Callable[..., Awaitable[Streams]]) -> None:
    """Announce 400 MB, and send as much of it as is taken."""
    _, writer = await connect()
    writer.write(HEAD + b"\r\n")
    for _ in range(400):
        writer.write(bytes(10**6))
        await writer.drain()


async def garbage(connect: Callable[..., Awaitable[Streams]]) -> None:
    """Send random bytes over TLS, and to it."""
    for is_plain in (False, True):
        reader, writer = await connect(is_plain=is_plain)
        writer.write(os.urandom(20_000))
        await writer.drain()
        await reader.read(1000)
        writer.close()


async def half_open(connect: Callable[..., Awaitable[Streams]]) -> None:
    """Begin to agree on keys, and then say nothing."""
    reader, writer = await connect(is_plain=True)
    writer.write(b"\x16\x03\x01\x02\x00\x01")
    await reader.read(1)


FLOODS: dict[str, tuple[Visit, float]] = {
    "slow headers": (slow_headers, 0.5),
    "slow bodies": (slow_bodies, 0.5),
    "bodies of 400 MB": (large_bodies, 10.0),
    "garbage": (garbage, 10.0),
    "half-open TLS": (half_open, 0.5),
}
"""What each stranger does, and the seconds after which it comes again."""


def flood(name: str, port: int) -> None:
    """Send strangers to a port, without end."""
    visit, pause = FLOODS[name]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def stranger(number: int) -> None:
        address = f"127.0.1.{1 + number % ADDRESSES}"

        async def connect(*, is_plain: bool = False) -> Streams:
            streams = await asyncio.open_connection(
                "127.0.0.1",
                port,
                ssl=None if is_plain else context,
                local_addr=(address, 0),
            )
            writers.append(streams[1])
            return streams

        await asyncio.sleep(pause * number / CONNECTIONS)
        while True:
            writers: list[asyncio.StreamWriter] = []
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await visit(connect)
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(pause)

    async def everybody() -> None:
        await asyncio.gather(*map(stranger, range(CONNECTIONS)))

    asyncio.run(everybody())


def rounds_done(run: Path) -> int:
    """Return how many rounds are done."""
    path = run / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rounds(run: Path, number: int) -> None:
    """Wait until so many rounds are done."""
    end = time.monotonic() + 300
    while rounds_done(run) < number:
        if time.monotonic() > end:
            raise SystemExit("the federation does not start")
        time.sleep(0.5)


def resident_of_gate(port: int) -> float:
    """Return the resident megabytes of the gate."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().split(b"\0")
            if b"fedtailor.deployment.flower.gate" in command and str(port).encode() in command:
                lines = dict(
                    line.split(":", 1) for line in (path / "status").read_text().splitlines()
                )
                return int(lines["VmRSS"].split()[0]) / 1024
    return 0.0


def measure(run: Path, port: int, seconds: float, name: str) -> dict[str, object]:
    """Return rounds a minute and memory beside a flood; without one if it has no name."""
    process = multiprocessing.Process(target=flood, args=(name, port)) if name else None
    if process is not None:
        process.start()
        time.sleep(5)

    begun = time.monotonic()
    before = rounds_done(run)
    resident = 0.0
    while time.monotonic() < begun + seconds:
        resident = max(resident, resident_of_gate(port))
        time.sleep(1)

    rounds = rounds_done(run) - before
    minutes = (time.monotonic() - begun) / 60
    if process is not None:
        process.terminate()
        process.join()
        time.sleep(5)
    return {
        "flood": name or "none",
        "rounds_per_minute": round(rounds / minutes, 1),
        "gate_resident_mb": round(resident),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print a record for each flood."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each measurement")
    seconds = parser.parse_args().seconds
    port = free_port()
    command = [sys.executable, "-m", "fedtailor"]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = prepare(folder, rounds=1000, port=port)
        with Supervisor(folder, os.environ) as sites:
            for site in SITES:
                sites.start(site, [*command, "site", "start", str(folder / site)])
            serve = subprocess.Popen([*command, "serve", str(server)], stdout=subprocess.DEVNULL)
            try:
                run = server / "runs" / "0001"
                wait_for_rounds(run, 2)
                for flood_name in ("", *FLOODS, ""):
                    print(json.dumps(measure(run, port, seconds, flood_name)), flush=True)
            finally:
                serve.send_signal(signal.SIGINT)
                serve.wait(60)


if __name__ == "__main__":
    main()
