"""The engine ``processes``: the same bits, what can and cannot be sent, and how processes end."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from contract.cases import build
from federations import TASKS, make_federation, perceptron
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core import tree
from fedtailor.core.engine import Failure, NoAnswer
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.models import build_model
from fedtailor.simulation.engines import mapped_tables, worker_process
from fedtailor.simulation.engines.processes import Processes
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.worker_process import WorkerProcess
from fedtailor.simulation.programs import TrainRequest, client_program
from fedtailor.simulation.report import describe
from fedtailor.testing.runs import assert_same_runs, run
from marks import quick
from simulation.engines import programs
from simulation.engines.programs import TENSORS, data, job, same
from waiting import wait_for

COMMON = {"factor": torch.tensor(2.0)}
SIZES = (3, 0, 7, 1, 7, 2)
TASK = perceptron()


def jobs():
    return [
        job(client, size, state={"a": (torch.ones(2),), "b": ()})
        for client, size in enumerate(SIZES)
    ]


@pytest.fixture(scope="module")
def pool():
    with closing(Processes(2)) as engine:
        yield engine


# The same bits


@pytest.mark.parametrize(
    "algorithm",
    quick(
        ["pfedfda", "fedrep", "fedpac", "knn_per", "scaffold", "pfedvem", "fedcr"],
        "fedpac",
        "knn_per",
    ),
)
def test_same_bits_as_reference(pool, algorithm):
    federation = make_federation(perceptron())
    assert_same_runs(
        run(build(algorithm), Reference(), federation), run(build(algorithm), pool, federation)
    )


@pytest.mark.parametrize("model", quick(["cnn", "module"], "module"))
def test_same_bits_with_convolutions_and_dropout(pool, model):
    federation = make_federation(TASKS[model]())
    assert_same_runs(
        run(build("fedavg_ft"), Reference(), federation), run(build("fedavg_ft"), pool, federation)
    )


def test_same_bits_in_float64(pool, float64):
    federation = make_federation(perceptron())
    first = run(build("fedavg_ft"), Reference(), federation)
    assert_same_runs(first, run(build("fedavg_ft"), pool, federation))
    assert float64 in {leaf.dtype for leaf in tree.leaves(first.reports[-1].personal[0])}


def test_two_federations_in_turn(pool):
    both = [make_federation(perceptron(), seed=seed) for seed in (1, 2)]
    for federation in (*both, *both):
        engines = Reference(), pool
        assert_same_runs(
            *(run(build("fedavg"), engine, federation, rounds=1) for engine in engines)
        )


def test_clients_with_tasks_of_their_own(pool):
    federation = make_federation(perceptron())
    others = [TASKS["mlp"](), TASKS["module"]()]
    federation = replace(
        federation, client_tasks=[others[client % 2] for client in range(len(federation.splits))]
    )
    assert_same_runs(
        run(build("local"), Reference(), federation), run(build("local"), pool, federation)
    )


# What an engine does


def test_outputs_come_in_the_order_of_the_jobs(pool):
    outputs = pool.map(programs.total, COMMON, jobs())
    assert [int(output["client"]) for output in outputs] == list(range(6))
    assert [float(output["sum"][0]) for output in outputs] == [
        float(size * (size + 1)) for size in SIZES
    ]
    assert all(
        output["state"]["b"] == () and isinstance(output["state"]["a"], tuple) for output in outputs
    )
    assert pool.map(programs.total, COMMON, []) == []


def test_clients_run_at_the_same_time(pool, tmp_path):
    """Two clients that wait for each other: both must be running."""
    outputs = pool.map(programs.meet, str(tmp_path), [job(1), job(2)])
    assert [int(output) for output in outputs] == [1, 2]


def test_processes_are_like_their_parent(pool):
    torch.set_float32_matmul_precision("high")
    torch.backends.mkldnn.enabled = False
    torch.use_deterministic_algorithms(True)
    try:
        outputs = pool.map(programs.look, COMMON, jobs())
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.enabled = True
        torch.use_deterministic_algorithms(False)
    expected = {"threads": 1, "dtype": torch.float32, "ignores": True, "grad": True}
    expected |= {"deterministic": True, "precision": "high", "mkldnn": False}
    seen = {output.pop("process") for output in outputs}
    assert all(output == expected for output in outputs)
    assert len(seen) <= 2 and os.getpid() not in seen
    now = pool.map(programs.look, COMMON, jobs())
    assert {output["process"] for output in now} <= {
        worker._process.pid for worker in pool._pool.workers
    }
    assert all(
        (output["deterministic"], output["precision"], output["mkldnn"]) == (False, "highest", True)
        for output in now
    )


def test_a_task_is_sent_once_and_never_mistaken(pool):
    first = perceptron()
    seen = {}
    for _ in range(2):
        for number, process, identity in pool.map(
            programs.classes, COMMON, [job(n, task=first) for n in range(4)]
        ):
            assert number == 3 and seen.setdefault(process, identity) == identity
    for number in range(10, 20):  # each may come to lie where the last one was
        task = first._replace(num_classes=number)
        assert pool.map(programs.classes, COMMON, [job(0, task=task)])[0][0] == number
        del task
    two = [first._replace(num_classes=number) for number in (5, 6)]
    found = pool.map(programs.classes, COMMON, [job(n, task=two[n % 2]) for n in range(6)])
    assert [number for number, *_ in found] == [5, 6] * 3


# Failures


def test_a_failing_client_fails_alone(pool):
    outputs = pool.map(programs.faulty, COMMON, jobs())
    failed = {
        position: describe(output)
        for position, output in enumerate(outputs)
        if isinstance(output, Failure)
    }
    assert failed == {1: "ValueError: client 1", 4: "Picky: client 4 is picky"}
    assert float(outputs[2]["sum"][0]) == 56.0


def test_an_output_that_cannot_be_sent_is_a_failure(pool):
    outputs = pool.map(programs.unreadable, COMMON, [job(0), job(1), job(2)])
    assert (
        describe(outputs[1])
        == "TypeError: the output holds a value of type function at 'function', which is not a tensor"
    )
    assert [int(outputs[0]), int(outputs[2])] == [0, 2]


def test_a_client_whose_process_dies_fails_alone(pool):
    outputs = pool.map(programs.deadly, data(torch.ones(2)), [job(n) for n in range(5)])
    reason = outputs.pop(2).reason
    assert str(reason).startswith(
        "the process of this client was ended by signal 9 (SIGKILL), possibly because"
    )
    assert [int(output) for output in outputs] == [0, 1, 3, 4]


def test_a_process_that_dies_between_two_rounds_costs_no_client_its_round():
    with closing(Processes(1)) as engine:
        assert [int(output) for output in engine.map(programs.deadly, COMMON, [job(0)])] == [0]
        (worker,) = engine._pool.workers
        os.kill(worker._process.pid, signal.SIGKILL)
        wait_for(lambda: not alive(worker._process.pid))
        assert [int(output) for output in engine.map(programs.deadly, COMMON, [job(1)])] == [1]

        # Seen only when something is sent to it.
        process = worker._process
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not alive(process.pid))
        process.poll = lambda: None
        assert [int(output) for output in engine.map(programs.deadly, COMMON, [job(3)])] == [3]


@pytest.mark.slow
def test_a_client_that_takes_too_long_fails_alone(tmp_path):
    started = tmp_path / "started"
    # A process that starts imports PyTorch, which may take long.
    with closing(Processes(1, timeout=30.0)) as engine:
        assert [int(output) for output in engine.map(programs.deadly, COMMON, [job(0)])] == [0]
        engine.timeout = 3.0
        (output,) = engine.map(programs.slow, data(torch.ones(2), shared=str(started)), [job(0)])
        (slow,) = pids(started)
        assert describe(output) == "no answer within 3 s (federation.client_timeout)"
        assert isinstance(output.reason, NoAnswer) and not alive(slow)
        engine.timeout = 30.0
        assert [
            int(output) for output in engine.map(programs.deadly, COMMON, [job(0), job(1)])
        ] == [0, 1]


@pytest.mark.slow
def test_a_client_that_writes_to_the_data_of_others_ends_its_process_only(tmp_path):
    x = torch.ones(4, 3)
    with closing(Processes(1)) as engine:
        outputs = engine.map(programs.writes_to_tables, data(x), [job(n) for n in range(3)])
    assert (
        "SIGSEGV), possibly because its program wrote to the data, which are read-only"
        in describe(outputs[1])
    )
    assert [float(outputs[n]) for n in (0, 2)] == [12.0, 12.0] and float(x.sum()) == 12


@pytest.mark.slow
def test_a_process_that_closes_its_connection_does_not_remove_the_files_of_the_data():
    with closing(Processes(1)) as engine:
        outputs = engine.map(
            programs.closes_files, data(torch.ones(4, 3)), [job(n) for n in range(3)]
        )
        assert describe(outputs[1]) == "the process of this client closed its connection"
        assert [float(outputs[n]) for n in (0, 2)] == [12.0, 12.0]


# How processes end


@pytest.mark.slow
def test_an_interruption_ends_clients_and_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_tables.tempfile, "tempdir", str(tmp_path))
    started = tmp_path / "started"
    main = threading.main_thread().ident

    def interrupt():
        wait_for(lambda: len(pids(started)) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    try:
        engine = Processes(1)
        with pytest.raises(KeyboardInterrupt):
            engine.map(
                programs.slow, data(torch.ones(2), shared=str(started)), [job(n) for n in range(5)]
            )
            helper.join()
    finally:
        helper.join()
    assert len(pids(started)) == 1 and not alive(pids(started)[0]), (
        "no further client starts, and its process ended"
    )
    assert not list(tmp_path.glob("fedtailor-*"))

    # It starts anew; Ctrl-C does not reach it, so an interruption is the program's own failure.
    with closing(engine):
        (output,) = engine.map(programs.interrupted, COMMON, [job(0)])
        assert isinstance(output, Failure) and describe(output).startswith("KeyboardInterrupt")


ORPHAN = """
import sys, torch
from simulation.engines import programs
from simulation.engines.programs import TENSORS, data, job, same
from fedtailor.simulation.engines.processes import Processes
engine = Processes(1)
engine.map(getattr(programs, sys.argv[1]), programs.data(torch.ones(2), shared=sys.argv[2]), [programs.job(0)])
print("done")
"""


def parent(tmp_path, program):
    """Return a process with an engine that it never closes: a script without ``if __name__ ==
    "__main__"``."""
    script = tmp_path / "script.py"
    script.write_text(ORPHAN)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", str(script), program, str(tmp_path / "started")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_processes_end_when_their_parent_is_killed(tmp_path):
    with parent(tmp_path, "slow") as process:
        wait_for(lambda: pids(tmp_path / "started"))
        (child,) = pids(tmp_path / "started")
        assert alive(child)
        process.kill()
        wait_for(lambda: not alive(child))
    wait_for(lambda: not list(tmp_path.glob("fedtailor-*")))


@pytest.mark.slow
def test_processes_end_with_the_interpreter_without_a_word(tmp_path):
    with parent(tmp_path, "look") as process:
        assert process.communicate(timeout=60) == ("done\n", "this must not disturb the answers\n")
        assert process.returncode == 0
    assert not list(tmp_path.glob("fedtailor-*"))


@pytest.mark.parametrize(
    ("command", "how"), [("false", "ended with exit code 1"), ("nowhere", "No such file")]
)
def test_processes_that_cannot_start_end_the_run(command, how, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_tables.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", command)
    with pytest.raises(RunError, match=how) as refused:
        Processes(2).map(programs.total, data(torch.ones(2)), jobs())
    assert refused.value.key == "engine.name" and "workers" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_data_that_cannot_be_written_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_tables.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        RunError, match=r"cannot write the data for its processes to .*none.*TMPDIR"
    ):
        Processes(2).map(programs.total, data(torch.ones(2)), jobs())


def pids(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid):
    """Return whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# What travels


def test_tensors_keep_their_layout_there_and_back(pool):
    found = pool.map(programs.layouts, TENSORS, [job(0)])[0]
    for name, (stride, lead, tensor) in found.items():
        expected = TENSORS[name].resolve_conj()
        assert stride == expected.stride(), name
        assert lead == (expected.data_ptr() % 64 if expected.numel() else 0), name
        same(tensor, TENSORS[name].clone())  # an output is a copy, whose values do not overlap


def test_tables_keep_their_layout(pool):
    x = TENSORS["channels_last"]
    y = torch.arange(9)[1:3]
    stride, channels_last, some, labels = pool.map(programs.tables, data(x, y), [job(0)])[0]
    assert (stride, channels_last) == (x.stride(), True)
    assert torch.equal(some, x[1:2]) and torch.equal(labels, y)
    nothing = pool.map(programs.tables, data(x[:0], y[:0]), [job(0, 0)])[0]
    assert nothing[2].shape == (0, 3, 4, 4) and len(nothing[3]) == 0


# What does not


class Homeless(FedAvg):
    """An algorithm of the script that was started."""


class Closed:
    """A model that holds a function without a name."""

    def __init__(self):
        self.function = lambda x: x


def refused(call, *parts):
    with pytest.raises(ConfigError) as error:
        call()
    assert error.value.key == "engine.name" and "workers" in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_what_cannot_be_sent_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr(sys, "executable", "nowhere")
    monkeypatch.setattr(Homeless, "__module__", "__main__")
    engine = Processes(1)
    mine = client_program(Homeless(), TrainRequest())
    refused(
        lambda: engine.map(mine, data(torch.ones(1)), [job(0)]),
        "algorithm 'Homeless'",
        "main script",
    )
    refused(lambda: engine.map(lambda *_: 0, COMMON, [job(0)]), "program '<lambda>'")
    closed = TASK._replace(model=Closed())
    refused(
        lambda: engine.map(programs.total, COMMON, [job(0, task=closed)]),
        "model 'Closed'",
        "lambda",
    )
    common = {"factor": lambda: 0}
    refused(
        lambda: engine.map(programs.total, common, [job(0)]),
        "the program 'total'",
    )


def test_a_model_of_the_current_folder_is_found(pool, tmp_path, monkeypatch):
    lines = [
        "from torch import nn",
        "class Own(nn.Sequential): pass",
        "def network(input_shape, num_classes):",
    ]
    layers = "nn.Flatten(), nn.Linear(input_shape[0], 6), nn.Tanh(), nn.Linear(6, num_classes)"
    (tmp_path / "my_own_network.py").write_text("\n".join([*lines, f"    return Own({layers})\n"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    pool.map(programs.total, COMMON, [job(0), job(1)])  # its processes run already
    federation = make_federation(
        TASK._replace(model=build_model("my_own_network:network", (4,), 3))
    )
    assert_same_runs(
        run(build("fedavg"), Reference(), federation), run(build("fedavg"), pool, federation)
    )


def test_the_longest_starts_first():
    order = []
    engine = Processes(1)
    engine._pool.workers[0].run = lambda folder, requests, job, timeout: order.append(job.client)
    engine.map(programs.total, COMMON, jobs())
    assert order == [2, 4, 0, 5, 3, 1]


@pytest.mark.slow
def test_what_cannot_be_sent_later_is_named_too(pool, monkeypatch):
    refused(
        lambda: pool.map(programs.total, COMMON, [job(3, state=(lambda: 0,))]), "state of client 3"
    )
    ghost = ModuleType("ghost")
    exec("def program(task, common, inputs): pass", ghost.__dict__)
    monkeypatch.setitem(sys.modules, "ghost", ghost)
    refused(lambda: pool.map(ghost.program, COMMON, [job(0)]), "No module named 'ghost'")


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_its_process_starts_runs_nothing(monkeypatch):
    """An interruption finds no process to end yet; the one that comes then must not work for
    minutes."""
    worker = WorkerProcess()
    original = subprocess.Popen

    def slow(*arguments, **options):
        process = original(*arguments, **options)
        worker.kill()
        return process

    monkeypatch.setattr(worker_process.subprocess, "Popen", slow)
    with pytest.raises(RunError, match="before it was ready"):
        worker._start("")
    worker.close()
    monkeypatch.undo()
    worker._start("")  # a later map starts anew
    worker.close()
