"""Engines: order, failures, threads, stacks. What algorithms make of them is in the contract."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NamedTuple, get_args, get_type_hints

import pytest
import torch

import fedtailor.simulation.engines.batched as batched
from federations import perceptron
from fedtailor.core.engine import (
    ExamplePositions,
    Failure,
    Job,
    _cpus_of_container,
    physical_cores,
)
from fedtailor.simulation import engines
from fedtailor.simulation.engines import EngineOptions
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.build import build_engine
from fedtailor.simulation.engines.reference import Reference, one_thread
from fedtailor.simulation.engines.workers import Workers, keep_pages

ENGINES = {
    "reference": Reference(),
    "workers 1": Workers(1),
    "workers 3": Workers(3),
    "batched": Batched(2),
}
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


class Inputs(NamedTuple):
    client: torch.Tensor
    train: ExamplePositions
    state: dict


def job(client, size=None, task=None):
    """Return a job whose examples are numbered 1 to ``size``, of weight 1."""
    size = client if size is None else size
    examples = ExamplePositions(torch.arange(1, size + 1), torch.ones(size))
    return Job(
        client,
        task or TASK,
        Inputs(torch.tensor(client), examples, {"a": (torch.ones(2),), "b": ()}),
        size,
    )


TASK = perceptron()
SIZES = (3, 0, 7, 1, 7, 2)


def jobs():
    return [job(client, size) for client, size in enumerate(SIZES)]


def total(task, common, inputs):
    """Return the client, and the sum of its examples times a common factor."""
    value = (inputs.train.positions * inputs.train.weight).sum() * common["factor"]
    return {"client": inputs.client, "sum": (value,), "state": inputs.state}


COMMON = {"factor": torch.tensor(2.0)}


@every_engine
def test_outputs_come_in_the_order_of_the_jobs(engine):
    outputs = engine.map(total, COMMON, jobs())
    assert [int(output["client"]) for output in outputs] == list(range(6))
    assert [float(output["sum"][0]) for output in outputs] == [
        float(size * (size + 1)) for size in SIZES
    ]
    assert all(
        output["state"]["b"] == () and isinstance(output["state"]["a"], tuple) for output in outputs
    )


@every_engine
def test_no_jobs(engine):
    assert engine.map(total, COMMON, []) == []


@every_engine
def test_a_closed_engine_can_be_used_again(engine):
    engine.close()
    assert len(engine.map(total, COMMON, jobs())) == len(SIZES)


def faulty(task, common, inputs):
    if int(inputs.client) in (1, 4):
        raise ValueError(f"client {int(inputs.client)}")
    return total(task, common, inputs)


@pytest.mark.filterwarnings("ignore:engine .batched. runs clients one by one:RuntimeWarning")
@every_engine
def test_a_failing_client_fails_alone(engine):
    outputs = engine.map(faulty, COMMON, jobs())
    failed = {
        position: output for position, output in enumerate(outputs) if isinstance(output, Failure)
    }
    assert {position: str(failure.reason) for position, failure in failed.items()} == {
        1: "client 1",
        4: "client 4",
    }
    assert isinstance(failed[1].reason, ValueError)
    assert [float(outputs[n]["sum"][0]) for n in (0, 2, 3, 5)] == [12.0, 56.0, 2.0, 6.0]


@every_engine
def test_interruption_is_no_failure_of_a_client(engine):
    once = []

    def interrupted(task, common, inputs):
        if not once:
            once.append(True)
            signal.raise_signal(signal.SIGINT)
        return inputs.client

    with pytest.raises(KeyboardInterrupt):
        engine.map(interrupted, COMMON, jobs())


def test_a_client_of_another_thread_cannot_interrupt():
    """Python handles signals in the main thread; what is raised elsewhere is the program's own."""

    def interrupted(task, common, inputs):
        raise KeyboardInterrupt

    assert all(
        isinstance(output, Failure) for output in Workers(2).map(interrupted, COMMON, jobs())
    )


@every_engine
def test_one_thread_within_and_as_before_after(engine):
    before = torch.get_num_threads()
    seen = set()
    torch.set_num_threads(2)

    def look(task, common, inputs):
        seen.add(torch.get_num_threads())
        return inputs.client

    try:
        engine.map(look, COMMON, jobs())
        assert seen == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_are_as_before_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_workers_start_the_longest_first_ties_by_position():
    started = []
    lock = threading.Lock()

    def note(task, common, inputs):
        with lock:
            started.append(int(inputs.client))
        return inputs.client

    Workers(1).map(note, COMMON, jobs())
    assert started == [2, 4, 0, 5, 3, 1]


def test_workers_run_at_the_same_time():
    """Two clients that wait for each other: both must be running."""
    meeting = threading.Barrier(2, timeout=30)

    def meet(task, common, inputs):
        meeting.wait()
        return inputs.client

    outputs = Workers(2).map(meet, COMMON, [job(1), job(2)])
    assert [int(output) for output in outputs] == [1, 2]


def test_an_interrupted_map_starts_no_further_client():
    started = []
    release = threading.Event()

    def program(task, common, inputs):
        started.append(int(inputs.client))
        if len(started) == 1:
            signal.raise_signal(signal.SIGINT)
        release.wait(0.2)
        return inputs.client

    with pytest.raises(KeyboardInterrupt):
        Workers(1).map(program, COMMON, [job(client, 100 - client) for client in range(40)])
    assert 1 <= len(started) < 40


def test_a_client_that_ends_after_an_interruption_changes_no_settings(monkeypatch):
    """A second Ctrl-C ends the wait for clients; what comes next may need other settings."""
    release = threading.Event()
    threads = []
    pools = []

    def program(task, common, inputs):
        threads.append(threading.current_thread())
        signal.raise_signal(signal.SIGINT)
        release.wait(30)
        return inputs.client

    def interrupt(pool):
        pools.append(pool)
        raise KeyboardInterrupt

    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
        patches.setattr(ThreadPoolExecutor, "shutdown", interrupt)
        Workers(1).map(program, COMMON, [job(0)])

    torch.set_default_dtype(torch.float64)
    release.set()
    pools[0].shutdown()
    threads[0].join(30)
    try:
        assert not threads[0].is_alive() and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_blocks_hold_clients_of_one_task_and_similar_size():
    other = perceptron()
    mixed = [job(0, 3), job(1, 9, other), job(2, 8), job(3, 1, other), job(4, 5), job(5, 5)]
    blocks = Batched(2)._blocks(mixed)
    assert blocks == [[2, 4], [5, 0], [1, 3]]
    tasks = {position: mixed[position].task.model for position in range(6)}
    assert all(len({id(tasks[position]) for position in block}) == 1 for block in blocks)


def test_tasks_of_their_own_reach_the_program():
    other = perceptron()._replace(num_classes=7)

    def scaled(task, common, inputs):
        return inputs.client * task.num_classes

    outputs = Batched(8).map(scaled, COMMON, [job(1), job(2, 2, other)])
    assert [int(output) for output in outputs] == [3, 14]


def test_stacks_are_run_once(monkeypatch):
    calls = []

    def count(task, common, inputs):
        calls.append(inputs.train.positions.shape)
        return total(task, common, inputs)

    Batched(4).map(count, COMMON, jobs())
    assert calls == [
        (7,),
        (1,),
    ]  # six clients in blocks of four and two, padded to the longest of each


def test_outputs_do_not_share_memory():
    """Otherwise one client's state would keep the whole stack alive, or change with another's."""
    for engine in (Batched(3), Batched(32)):
        outputs = engine.map(total, COMMON, jobs())
        outputs[0]["state"]["a"][0].fill_(9)
        assert all(output["state"]["a"][0].tolist() == [1, 1] for output in outputs[1:])
        storages = {output["sum"][0].untyped_storage().data_ptr() for output in outputs}
        assert len(storages) == len(outputs)


@pytest.mark.filterwarnings("ignore:engine .batched. runs clients one by one:RuntimeWarning")
def test_rows_of_other_structure_run_one_by_one():
    """States may differ in shape where tasks do; such clients cannot be stacked, but they can be
    run."""
    odd = job(3)
    odd = odd._replace(inputs=odd.inputs._replace(state={"a": (torch.ones(5),), "b": ()}))
    outputs = Batched(8).map(total, COMMON, [job(1), odd])
    assert [output["state"]["a"][0].numel() for output in outputs] == [2, 5]


@every_engine
def test_gradients_are_off_or_on_as_the_program_says(engine):
    def slope(task, common, inputs):
        return torch.func.grad(lambda w: w * w)(inputs.client.float())

    assert [float(output) for output in engine.map(slope, COMMON, jobs())] == [0, 2, 4, 6, 8, 10]


def test_table_options_and_classes_agree():
    names = get_args(get_type_hints(EngineOptions)["name"])
    assert sorted(names) == sorted(engines.ENGINES) == list(engines.ENGINES)
    for name in sorted(set(engines.ENGINES) - {"ray"}):  # an extra, with tests of its own
        assert build_engine(EngineOptions(name=name)).name == (
            "workers" if name == "auto" else name
        )
    assert build_engine(EngineOptions(name="workers", workers=3)).workers == 3
    assert build_engine(EngineOptions(name="processes", workers=3)).workers == 3
    assert build_engine(EngineOptions(name="batched", block=5)).block == 5


@pytest.mark.parametrize(
    ("text", "cpus"), [("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1)]
)
def test_a_container_has_the_cores_of_its_quota(tmp_path, text, cpus):
    quota = tmp_path / "cpu.max"
    quota.write_text(text + "\n")
    assert _cpus_of_container(quota) == cpus
    quota.write_text("max 100000\n")
    assert _cpus_of_container(quota) == _cpus_of_container(tmp_path / "none") > 1000


def test_workers_fill_the_physical_cores():
    assert Workers().workers == physical_cores() >= 1
    assert keep_pages() in (True, False)


def given(task, common, inputs):
    return inputs


def test_threads_stay_until_the_engine_is_closed():
    engine = Workers(2)
    jobs = [Job(client, TASK, torch.tensor(float(client)), 1) for client in range(4)]
    before = set(threading.enumerate())
    engine.map(given, (), jobs)
    engine.map(given, (), jobs)
    started = set(threading.enumerate()) - before
    assert 1 <= len(started) <= 2
    engine.close()
    assert not any(thread.is_alive() for thread in started)
    assert [float(output) for output in engine.map(given, (), jobs)] == [0.0, 1.0, 2.0, 3.0]
    engine.close()


def test_padding_has_weight_zero():
    stacked = batched._stack([job(2).inputs, job(4).inputs])
    assert stacked.train.positions.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert stacked.train.weight.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_a_program_that_cannot_be_stacked_runs_one_by_one_with_a_warning():
    def program(task, common, inputs):
        return inputs * 2 if float(inputs) > 0 else inputs  # branches on data

    task = SimpleNamespace(model=None)
    jobs = [Job(client, task, torch.tensor(float(client)), 1) for client in range(3)]
    with pytest.warns(RuntimeWarning, match="engine 'batched' runs clients one by one"):
        assert [float(output) for output in Batched(3).map(program, (), jobs)] == [0.0, 2.0, 4.0]


def needs_much_memory(task, common, inputs):
    """Ask for memory that no machine has if there are many clients."""
    if torch._C._functorch.is_batchedtensor(inputs):
        torch.empty(2**60)
    return inputs + 1


def test_too_much_memory_for_a_stack_is_answered_by_the_block_to_set():
    jobs = [Job(client, TASK, torch.tensor(float(client)), 1) for client in range(6)]
    with pytest.warns(
        RuntimeWarning, match=r"not enough memory to stack 6\. Set engine\.block = 3 \(it is 8\)\."
    ):
        outputs = Batched(8).map(needs_much_memory, torch.tensor(0.0), jobs)
    assert [float(output) for output in outputs] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("first", [0, 1])
def test_states_with_other_entries_run_one_by_one_and_lose_nothing(first):
    def program(task, common, inputs):
        return {"steps": inputs["state"].get("steps", torch.tensor(0.0)) + inputs["client"]}

    states = [{}, {"steps": torch.tensor(5.0)}]
    jobs = []
    for client in (first, 1 - first):
        inputs = {"client": torch.tensor(float(client)), "state": states[client]}
        jobs.append(Job(client, TASK, inputs, 1))

    with pytest.warns(RuntimeWarning, match="states of clients do not have the same entries"):
        outputs = Batched(2).map(program, (), jobs)
    assert [float(output["steps"]) for output in outputs] == [6.0 * first, 6.0 * (1 - first)]
