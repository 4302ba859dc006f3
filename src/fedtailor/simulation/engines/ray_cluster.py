"""A Ray cluster as the engine ``ray`` sees it: an existing one, or one of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedtailor.core.engine import physical_cores
from fedtailor.core.errors import ConfigError, FedtailorError, RunError, one_line
from fedtailor.core.extras import install_command
from fedtailor.core.options import wrong_value
from fedtailor.simulation.engines.ray_actor import ClientActor, description

_ADDRESS = "engine.ray_address"
_PATIENCE = 12
"""Seconds in which a cluster must let a process in."""
_FREE_PATIENCE = 4
"""Seconds in which one CPU must be free. Those of a run that has just ended are free after less
than one."""
_PROBE = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except BaseException as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
"""
"""Tries to connect. Ray tries for a minute or two, and then ends the process that asked."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # As later versions of Ray do. No actor uses a device.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_ALONE = {
    # Its servers listen to this machine only, on every system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Uploads that were read leave the object store soon, not in a second.
    "RAY_free_objects_period_milliseconds": "50",
}
"""For a cluster of its own."""
_SOFTWARE = {"fedtailor": "fedtailor", "torch": "PyTorch", "python": "Python"}
"""On which results depend, with its name in messages."""


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigError: it is not.
    """
    package = importlib.util.find_spec("ray")
    if package is None or package.origin is None:  # a folder of this name is not a package
        raise ConfigError(
            f"engine 'ray' needs the package ray: {install_command('ray')}.",
            key="engine.name",
            got="ray",
        )


class Cluster:
    """A connection to a cluster. It begins with :meth:`connect`."""

    def __init__(self, address: str, workers: int) -> None:
        """Describe the connection.

        Args:
            address: of an existing cluster; ``auto``: the one on this machine; empty: a cluster of
                its own.
            workers: the number of actors; 0: as many as there are CPUs in the cluster, or physical
                cores.
        """
        self.address = address
        self.workers = workers
        self.is_connected = False
        self._must_disconnect = False
        self._actor_class: Any = None
        self._warned: set[str] = set()

    def connect(self) -> None:
        """Connect, unless it was done; start a cluster if there is to be one of its own.

        A process that is connected already stays so, and uses that cluster.

        Raises:
            ConfigError: there is no cluster at the address, it does not let this process in, it has
                another version of Ray or Python, or too few CPUs.
            RunError: no cluster can be started, or others use all CPUs.
        """
        if self.is_connected:
            return

        # Before Ray is imported, which reads them.
        os.environ.update(_QUIET)
        if not self.address:
            os.environ.update(_ALONE)

        import ray

        if not ray.is_initialized():
            with _handlers_restored():
                if self.address:
                    self._join(ray)
                else:
                    self._start(ray)

            self._must_disconnect = True

        # Every actor takes one CPU.
        available = int(ray.cluster_resources().get("CPU", 0))
        if self.workers > available:
            allowed = f"at most {available}, the CPUs of the Ray cluster"
            raise wrong_value("engine.workers", allowed, self.workers)

        _await_free_cpu(ray, available)
        self.workers = self.workers or available
        self._actor_class = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(ClientActor)
        self.is_connected = True

    def _join(self, ray: Any) -> None:
        """Connect to the cluster at the address."""
        _refuse_unreachable(self.address)
        _knock(self.address)
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _refused(self.address, one_line(str(error))) from error

    def _start(self, ray: Any) -> None:
        """Start a cluster on this machine."""
        try:
            ray.init(
                address="local",
                num_cpus=self.workers or physical_cores(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _node_ip_address="127.0.0.1",
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            message = (
                f"engine 'ray' cannot start a Ray cluster on this machine: {one_line(str(error))}."
            )
            raise RunError(message, key="engine.name") from error

    def put(self, value: Any) -> Any:
        """Put a value into the object store; return its reference."""
        import ray

        return ray.put(value)

    def start_actor(self) -> Any:
        """Start an actor; return its handle."""
        return self._actor_class.remote()

    def check(self, actor: Mapping[str, str]) -> None:
        """Compare the description of an actor with this process.

        Raises:
            ConfigError: the actor has other versions, so that its results could be others.
        """
        here = description()
        # Other software may compute other results.
        host = actor["host"]
        for what, name in _SOFTWARE.items():
            if actor[what] != here[what]:
                allowed = f"{here[what]}, as here"
                got = f"{actor[what]} on '{host}'"
                hint = "Install the same versions on every machine."
                raise wrong_value(f"{name} of a Ray worker", allowed, got, hint)

        # Another processor only changes last bits, so it is a warning.
        if actor["capability"] != here["capability"] and host not in self._warned:
            self._warned.add(host)
            warnings.warn(
                f"the processor of '{host}' computes with {actor['capability']}, this one with "
                f"{here['capability']}: results may differ in their last bits from those of one "
                "machine. ATEN_CPU_CAPABILITY=avx2 (or default) on every machine makes them the "
                "same.",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Disconnect; a cluster of its own ends."""
        self.is_connected = False
        self._actor_class = None
        if self._must_disconnect:
            self._must_disconnect = False
            import ray

            with _handlers_restored():
                ray.shutdown()


@contextmanager
def _handlers_restored() -> Iterator[None]:
    """Put back the handlers of SIGINT and SIGTERM, which Ray replaces."""
    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)


def _await_free_cpu(ray: Any, available: int) -> None:
    """Wait until a CPU of the cluster is free.

    Raises:
        RunError: none is.
    """
    deadline = time.monotonic() + _FREE_PATIENCE
    while ray.available_resources().get("CPU", 0) < 1:
        if available == 0:
            raise RunError(
                "no actor of engine 'ray' can start: the Ray cluster has no CPU.", key="engine.name"
            )

        if time.monotonic() > deadline:
            raise RunError(
                f"no actor of engine 'ray' can start: others use all {available} CPUs of the Ray "
                "cluster. Try again when one is free; 'ray status' shows them.",
                key="engine.name",
            )

        time.sleep(0.1)


def _knock(address: str) -> None:
    """Check that a cluster lets this process in, from another process.

    Raises:
        ConfigError: it does not; or there is none.
    """
    command = [sys.executable, "-c", _PROBE, address]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise _refused(address, f"it did not let this process in within {_PATIENCE} s") from error

    if done.returncode == 0:
        return

    raise _refused(address, done.stdout.decode(errors="replace"))


def _refuse_unreachable(address: str) -> None:
    """Raise if nothing listens at an address of the form ``host:port``."""
    if address == "auto":
        return

    parts = re.fullmatch(r"(?:ray://)?([^/:]+|\[[^\]]+\]):(\d+)", address)
    if not parts:
        raise wrong_value(_ADDRESS, "auto, HOST:PORT or ray://HOST:PORT", address)

    host = parts.group(1).strip("[]")
    try:
        socket.create_connection((host, int(parts.group(2))), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _refused(address, str(error)) from error


def _refused(address: str, reason: str) -> FedtailorError:
    """Return the error for a cluster that cannot be used; Ray itself says best why."""
    hint = (
        f"Reason: {one_line(reason).rstrip('.')}. 'ray start --head' starts a cluster; without "
        f"{_ADDRESS}, the run starts its own. If it has a token, set RAY_AUTH_MODE=token, and "
        "RAY_AUTH_TOKEN_PATH to a file with it."
    )
    return wrong_value(_ADDRESS, "the address of a Ray cluster", address, hint)
