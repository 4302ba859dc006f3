"""The engine ``ray``: the same bits whatever happens to actors, and one sentence where a cluster
cannot be used.

The tests run where Ray is installed: ``make test-ray``.
"""

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import torch

pytest.importorskip("ray.util")

from contract.cases import build
from federations import TASKS, make_federation, perceptron
from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.federation import Federation, Split, Splits
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.simulation.engines.ray_actor import Package, description
from fedtailor.simulation.engines.ray_cluster import Cluster
from fedtailor.simulation.engines.ray_engine import Ray
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.report import describe
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.case import TRAINING
from fedtailor.testing.runs import assert_same_bits, assert_same_runs, run
from finished_runs import assert_same_reports
from simulation.engines import programs
from simulation.engines.programs import TENSORS, data, job, same

METHODS = ["fedavg", "scaffold", "pfedfda", "fedpac", "fedrep"]
COMMON = {"factor": torch.tensor(2.0)}
SIZES = (3, 0, 7, 1, 7, 2)
ENOUGH = 15
"""Seconds in which an error must have come."""


@pytest.fixture(scope="module")
def pool():
    with closing(Ray(2)) as engine:
        yield engine


def many_clients(count, seed=1):
    """Return a federation of clients with 2 to 9 training examples and 2 test examples."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 10, (count,), generator=generator).tolist()
    rows = sum(sizes) + 2 * count
    x = torch.randn(rows, 1, 4, 4, generator=generator)
    y = torch.randint(3, (rows,), generator=generator)
    places = torch.arange(rows)
    splits = []
    start = 0
    for size in sizes:
        end = start + size
        splits.append(Split(places[start:end], places[:0], places[end : end + 2]))
        start = end + 2
    return Federation(
        x, y, Splits(splits), Task(build_model("mlp", (1, 4, 4), 3, {"hidden": 8}), 3, (1, 4, 4))
    )


def actors():
    """Return the processes of the actors of this process's cluster."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_bytes().startswith(b"ray::ClientActor") and is_ours(
                    int(folder.name)
                ):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def is_ours(process):
    return parent_of(parent_of(process)) == os.getpid()


def parent_of(process):
    return int((Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()[1])


# The same bits


@pytest.mark.parametrize("algorithm", METHODS)
def test_same_bits_as_reference(pool, algorithm):
    federation = make_federation(perceptron())
    assert_same_runs(
        run(build(algorithm), Reference(), federation), run(build(algorithm), pool, federation)
    )


def test_same_bits_with_convolutions_and_dropout(pool):
    federation = make_federation(TASKS["module"]())
    assert_same_runs(
        run(build("fedavg_ft"), Reference(), federation), run(build("fedavg_ft"), pool, federation)
    )


def reports(algorithm, engine, federation, rounds=2):
    """Return the reports of a run that nobody traces, so that actors reduce uploads."""
    schedule = Schedule(rounds=rounds, evaluate_every=1, personalized_every=1)
    return list(simulate(algorithm, federation, engine, schedule, seed=3))


@pytest.mark.parametrize("algorithm", METHODS)
def test_same_bits_where_actors_reduce_uploads(pool, algorithm):
    federation = many_clients(64)
    expected = reports(build(algorithm), Reference(), federation)
    assert_same_reports(reports(build(algorithm), pool, federation), expected)


def test_actors_send_sums_of_neighbors(pool):
    def counted(program, common, jobs, gather, merge):
        # Scores are not gathered.
        if gather is None:
            return original(program, common, jobs, gather, merge)

        def noted(job, output):
            found.append(bool(output.upload.sums))
            return merge(job, output)

        return original(program, common, jobs, gather, noted)

    found = []
    original = pool.map_gathered
    with mock.patch.object(pool, "map_gathered", counted):
        reports(build("fedavg"), pool, many_clients(64), rounds=1)
    assert len(found) == 64 and sum(found) <= 32


@pytest.mark.parametrize("kind", ["a tuple of a class of its own", "a tuple that cannot be read"])
def test_what_cannot_be_sent_is_in_no_sum(pool, kind):
    federation = many_clients(64)
    algorithm = programs.Odd(training=TRAINING, kind=kind, who=2)
    found = reports(algorithm, pool, federation)
    assert [event["client"] for event in found[0].events if event["kind"] == "failed"] == [2]
    without = reports(programs.Odd(training=TRAINING, kind="fails", who=2), Reference(), federation)
    assert_same_bits(found[-1].state.server, without[-1].state.server)
    assert found[-1].trained == without[-1].trained


def test_two_federations_in_turn(pool):
    both = [make_federation(perceptron(), seed=seed) for seed in (1, 2)]
    for federation in (*both, *both):
        engines = Reference(), pool
        assert_same_runs(
            *(run(build("fedavg"), engine, federation, rounds=1) for engine in engines)
        )


def test_tensors_keep_their_layout_there_and_back(pool):
    found = pool.map(programs.layouts, TENSORS, [job(0)])[0]
    for name, (stride, lead, tensor) in found.items():
        expected = TENSORS[name].resolve_conj()
        assert stride == expected.stride(), name
        assert lead == (expected.data_ptr() % 64 if expected.numel() else 0), name
        same(tensor, TENSORS[name].clone())


def test_tables_keep_their_layout(pool):
    x = TENSORS["channels_last"]
    y = torch.arange(9)[1:3]
    stride, channels_last, some, labels = pool.map(programs.tables, data(x, y), [job(0)])[0]
    assert (stride, channels_last) == (x.stride(), True)
    assert torch.equal(some, x[1:2]) and torch.equal(labels, y)
    nothing = pool.map(programs.tables, data(x[:0], y[:0]), [job(0, 0)])[0]
    assert nothing[2].shape == (0, 3, 4, 4) and len(nothing[3]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_the_number_of_actors_changes_no_bit(pool, count):
    pool.close()  # its cluster has two CPUs
    small = many_clients(20)
    with closing(Ray(count)) as engine:
        for algorithm in METHODS:
            assert_same_runs(
                run(build(algorithm), Reference(), small), run(build(algorithm), engine, small)
            )
            assert_same_reports(
                reports(build(algorithm), engine, small),
                reports(build(algorithm), Reference(), small),
            )


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_thousand_clients(pool, algorithm):
    federation = many_clients(1000)
    expected = run(build(algorithm), Reference(), federation, rounds=1)
    assert_same_runs(expected, run(build(algorithm), pool, federation, rounds=1))


# Lost actors


def kill_one(delay):
    """Kill an actor after a while; return the thread that does it."""

    def kill():
        time.sleep(delay)
        victims = actors()
        if victims:
            os.kill(random.Random(delay).choice(victims), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def seconds_of(algorithm, engine, federation, rounds=2):
    start = time.perf_counter()
    reports(algorithm, engine, federation, rounds)
    return time.perf_counter() - start


def assert_same_bits_with_lost_actors(engine, trials):
    """Run every method in turn, and kill an actor at a random moment of each run."""
    federation = many_clients(20)
    usual = seconds_of(build("fedrep"), engine, federation)
    for trial in range(trials):
        one = build(METHODS[trial % len(METHODS)])
        expected = reports(one, Reference(), federation)
        thread = kill_one(random.Random(trial).uniform(0, usual))
        found = reports(one, engine, federation)
        thread.join()
        assert_same_reports(found, expected)


def test_a_lost_actor_costs_time_and_no_result(pool):
    assert_same_bits_with_lost_actors(pool, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ten_lost_actors_change_no_bit(pool, count):
    pool.close()  # its cluster has two CPUs
    with closing(Ray(count)) as engine:
        assert_same_bits_with_lost_actors(engine, 10)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_lost_actors_of_a_thousand_clients_change_no_bit(pool, count):
    pool.close()  # its cluster has two CPUs
    federation = many_clients(1000)
    with closing(Ray(count)) as engine:
        for algorithm in METHODS:
            expected = reports(build(algorithm), Reference(), federation, rounds=1)
            usual = seconds_of(build(algorithm), engine, federation, rounds=1)
            thread = kill_one(random.Random(algorithm).uniform(0, usual))
            found = reports(build(algorithm), engine, federation, rounds=1)
            thread.join()
            assert_same_reports(found, expected)


def test_a_client_that_ends_its_actor_again_and_again_fails_alone(pool):
    outputs = pool.map(programs.deadly, data(torch.ones(2)), [job(n) for n in range(5)])
    failure = outputs.pop(2)
    assert isinstance(failure.reason, NoAnswer)
    assert (
        describe(failure) == "the actor of this client ended 3 times while it ran no other client"
    )
    assert [int(output) for output in outputs] == [0, 1, 3, 4]


@pytest.mark.slow
def test_a_client_that_writes_to_the_data_of_others_ends_its_actor_only(pool):
    x = torch.ones(4, 3)
    outputs = pool.map(programs.writes_to_tables, data(x), [job(n) for n in range(3)])
    assert isinstance(outputs[1].reason, NoAnswer)
    assert [float(outputs[n]) for n in (0, 2)] == [12.0, 12.0] and float(x.sum()) == 12


# What goes wrong in a client


def test_a_failing_client_fails_alone(pool):
    outputs = pool.map(
        programs.faulty, COMMON, [job(client, size) for client, size in enumerate(SIZES)]
    )
    failed = {
        position: describe(output)
        for position, output in enumerate(outputs)
        if isinstance(output, Failure)
    }
    assert failed == {1: "ValueError: client 1", 4: "Picky: client 4 is picky"}
    assert float(outputs[2]["sum"][0]) == 56.0


def test_what_cannot_be_sent_is_named(pool):
    with pytest.raises(
        ConfigError, match="engine 'ray' cannot send the program '<lambda>' to its processes"
    ):
        pool.map(lambda task, common, inputs: inputs.client, COMMON, [job(0)])
    assert [int(output) for output in pool.map(programs.deadly, data(torch.ones(2)), [job(0)])] == [
        0
    ]


# Clusters that cannot be used


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Head:
    """A cluster that was started beforehand, on the loopback device."""

    def __init__(self, folder, environment=()):
        self.port = free_port()
        (folder / "token").write_text("1" * 64)
        (folder / "other").write_text("2" * 64)
        self.temporary = Path("/tmp") / f"r{self.port}"  # names of sockets must be short
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            f"--port={self.port}",
        ]
        command += ["--include-dashboard=false", "--num-cpus=2", f"--temp-dir={self.temporary}"]
        quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, **token, **dict(environment)},
            stdout=self.log,
            stderr=self.log,
        )

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def wait(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise AssertionError("the cluster did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        shutil.rmtree(self.temporary, ignore_errors=True)


PROGRAM = """
import sys, time
from contextlib import closing
import torch
from fedtailor.core.errors import FedtailorError
from fedtailor.simulation.engines.ray_engine import Ray
sys.path.insert(0, sys.argv[2])
from simulation.engines.programs import data, deadly, job
start = time.perf_counter()
try:
    with closing(Ray(0, sys.argv[1])) as engine:
        print([int(output) for output in engine.map(deadly, data(torch.ones(2)), [job(0), job(1)])])
except FedtailorError as error:
    print(f"{error.key}: {error.message}")
print(time.perf_counter() - start)
"""


HOLD = """
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=2)
class Other:
    def ready(self):
        return "ready"

other = Other.remote()
print(ray.get(other.ready.remote()), flush=True)
time.sleep(600)
"""


def environment_of(token):
    """Return the environment of another process that joins a cluster with a token."""
    joins = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    return {**os.environ, **joins, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}


def answer_of(address, token):
    """Return what another process prints that joins a cluster, and how many seconds it took."""
    command = [sys.executable, "-c", PROGRAM, address, str(Path(__file__).parent.parent)]
    done = subprocess.run(
        command, env=environment_of(token), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    text, seconds = done.stdout.strip().splitlines()
    return text, float(seconds)


def test_a_cluster_that_exists_a_wrong_token_and_no_free_cpu(tmp_path):
    head = Head(tmp_path)
    try:
        head.wait()
        text, _ = answer_of(head.address, tmp_path / "token")
        assert text == "[0, 1]"
        text, seconds = answer_of(head.address, tmp_path / "other")
        assert text.startswith("engine.ray_address: ") and head.address in text
        assert "token" in text and seconds < ENOUGH
        command = [sys.executable, "-c", HOLD, head.address]
        environment = environment_of(tmp_path / "token")
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "ready\n"
            text, seconds = answer_of(head.address, tmp_path / "token")
            other.kill()
        assert text == (
            "engine.name: no actor of engine 'ray' can start: others use all 2 CPUs of the Ray "
            "cluster. Try again when one is free; 'ray status' shows them."
        )
        assert seconds < ENOUGH
    finally:
        head.stop()


def other_package(folder, name, file, old, new):
    """Make a copy of an installed package, with another text in one file; the other files are
    links."""
    source = Path(importlib.util.find_spec(name).origin).parent
    copy = folder / name
    copy.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in (file, "__pycache__"):
            (copy / entry.name).symlink_to(entry)
    text = (source / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))


def other_version(folder, name):
    """Make a folder; a process that looks there first has another version of a package, or of
    Python."""
    if name == "fedtailor":
        other_package(folder, name, "__init__.py", '__version__ = "', '__version__ = "9.')
    elif name == "torch":
        other_package(folder, name, "version.py", "__version__ = '", "__version__ = '9.")
    elif name == "ray":
        other_package(folder, name, "_version.py", 'version = "', 'version = "9.')
    else:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            "import platform\nversion = platform.python_version()\nplatform.python_version = "
            'lambda: f"9.{version}"\n'
        )


def looks_first_in(folder):
    return {"PYTHONPATH": os.pathsep.join(map(str, [folder, *sys.path]))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, title", [("fedtailor", "fedtailor"), ("torch", "PyTorch"), ("python", "Python")]
)
def test_a_worker_with_another_version_is_refused(tmp_path, name, title):
    other_version(tmp_path / "other packages", name)
    head = Head(tmp_path, looks_first_in(tmp_path / "other packages"))
    try:
        head.wait()
        text, seconds = answer_of(head.address, tmp_path / "token")
        assert text.startswith("engine.ray_address: the Ray worker on '")
        assert f"has {title} 9." in text and "Install the same versions on every machine" in text
        assert seconds < ENOUGH
    finally:
        head.stop()


@pytest.mark.slow
def test_a_cluster_with_another_version_of_ray_is_refused(tmp_path):
    other_version(tmp_path / "other packages", "ray")
    head = Head(tmp_path, looks_first_in(tmp_path / "other packages"))
    try:
        head.wait()
        text, seconds = answer_of(head.address, tmp_path / "token")
        assert text.startswith("engine.ray_address: ") and head.address in text
        assert "Ray: 9." in text and seconds < ENOUGH
    finally:
        head.stop()


def test_data_that_arrive_changed_are_refused(pool, monkeypatch):
    put = pool._state.cluster.put

    def put_changed(value):
        if not isinstance(value, Package):
            value = value.copy()
            value[-1] ^= 1
        return put(value)

    with monkeypatch.context() as patched:
        patched.setattr(pool._state.cluster, "put", put_changed)
        with pytest.raises(
            DataError, match=r"the data that arrived at the Ray worker on '.*' differ from"
        ):
            pool.map(programs.deadly, data(torch.ones(2)), [job(0)])
    assert [int(output) for output in pool.map(programs.deadly, data(torch.ones(2)), [job(0)])] == [
        0
    ]


def test_an_address_without_a_cluster():
    address = f"127.0.0.1:{free_port()}"
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=f"got '{address}'.*refused.*'ray start --head'"):
        Cluster(address, 0)._join(None)
    assert time.perf_counter() - start < ENOUGH


@pytest.mark.parametrize("address", ["somewhere", "host:port", "http://a:1", "127.0.0.1:99999999"])
def test_an_address_that_is_none(address):
    with pytest.raises(ConfigError) as caught:
        Cluster(address, 0)._join(None)
    assert caught.value.key == "engine.ray_address" and caught.value.got == repr(address)


def test_another_processor_is_noted_once():
    cluster = Cluster("", 1)
    there = {**description(), "host": "node7", "capability": "NO AVX"}
    with pytest.warns(RuntimeWarning, match="the processor of 'node7' computes with NO AVX"):
        cluster.check(there)
    cluster.check(there)


def test_more_actors_than_processors_are_refused(pool):
    pool.map(programs.deadly, data(torch.ones(2)), [job(0)])
    with pytest.raises(
        ConfigError,
        match=r"engine\.workers must be at most 2, the CPUs of the Ray cluster, got 50",
    ):
        Ray(50).map(programs.deadly, data(torch.ones(2)), [job(0)])
