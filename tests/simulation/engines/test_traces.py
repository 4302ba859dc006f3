"""What programs and scripts change around them: settings, timers, handlers, modes."""

import ctypes
import platform
import signal
import threading
from contextlib import closing, contextmanager

import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms import load_algorithm
from fedtailor.core.task import Training
from fedtailor.core.torch_private import float32_precisions, set_float32_precisions
from fedtailor.simulation.engines.containment import open_autocasts
from fedtailor.simulation.engines.processes import Processes
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.traces import Traces
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.runs import assert_same_bits, assert_same_runs, run
from simulation.engines import programs
from simulation.engines.programs import job


@contextmanager
def precisions_afterwards_as_before():
    before = float32_precisions()
    try:
        yield
    finally:
        set_float32_precisions(before)
        torch.set_float32_matmul_precision("highest")


def all_tf32():
    torch.backends.fp32_precision = "tf32"


def mkldnn_bf16():
    torch.backends.mkldnn.set_flags(_fp32_precision="bf16")


def products_bf16():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def usual():
    pass


def old_medium():
    torch.set_float32_matmul_precision("medium")


SETTINGS = [usual, old_medium, all_tf32, mkldnn_bf16, products_bf16]


@pytest.mark.parametrize("engine", [Reference(), Workers(2)], ids=["reference", "workers"])
@pytest.mark.parametrize("by_client", SETTINGS)
@pytest.mark.parametrize("by_user", SETTINGS)
def test_the_precision_that_a_user_set_stays_whatever_a_client_sets(by_user, by_client, engine):
    def program(task, common, inputs):
        if int(inputs.client) == 0:
            by_client()
        return inputs.client

    with precisions_afterwards_as_before():
        by_user()
        precisions = float32_precisions()
        outputs = engine.map(program, None, [job(0)])
        assert [int(output) for output in outputs] == [0]
        assert float32_precisions() == precisions


def assert_that_nothing_is_left(engine, kind):
    _, output = engine.map(programs.careless, kind, [job(0), job(1)])
    expected = {
        "products": torch.full((2, 1), 2.0),
        "quotient": torch.tensor(1 / 5, dtype=torch.float64),
    }
    assert_same_bits(output, expected)


@pytest.mark.parametrize("kind", ["leave_modes", "leave_the_default_device", "leave_autocast"])
@pytest.mark.parametrize("engine", [Reference(), Workers(1)], ids=["reference", "workers"])
def test_what_a_thread_has_of_its_own_is_restored_after_every_client(engine, kind):
    assert_that_nothing_is_left(engine, kind)


def test_training_in_bfloat16_follows_a_client_that_left_autocast_open():
    """PyTorch keeps rounded parameters until all autocast contexts of a thread are left."""
    federation = make_federation(perceptron())
    training = Training(lr=0.1, epochs=2, batch_size=5, precision="bfloat16")
    algorithm = load_algorithm("pfedvem")(training=training)
    before = run(algorithm, Reference(), federation, rounds=1)

    assert_that_nothing_is_left(Reference(), "leave_autocast")
    assert open_autocasts() == 0
    assert_same_runs(before, run(algorithm, Reference(), federation, rounds=1))


def test_an_alarm_of_a_client_interrupts_nothing_in_the_main_thread():
    before = Traces.current()
    assert_that_nothing_is_left(Reference(), "leave_an_alarm")
    assert not Traces.current().left_since(before)


@pytest.mark.slow  # it starts two processes
def test_on_processes_nothing_at_all_is_left():
    announced = pytest.warns(RuntimeWarning, match="because a client's program left a thread")
    with closing(Processes(1)) as engine, announced:
        assert_that_nothing_is_left(engine, "leave_all")


def test_the_alarm_of_a_user_stays():
    def program(task, common, inputs):
        signal.signal(signal.SIGALRM, programs.expire)
        signal.alarm(0)
        return {}

    before = signal.signal(signal.SIGALRM, on_time)
    signal.alarm(1000)
    try:
        Reference().map(program, None, [job(0)])
        assert signal.getsignal(signal.SIGALRM) is on_time
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def on_time(number, frame):
    """Handle an alarm of the user."""


def test_what_a_client_left_is_seen():
    before = Traces.current()
    assert before.left_since(before) == ""

    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert Traces.current().left_since(before) == "a thread that still runs"
    stop.set()
    thread.join()

    signal.setitimer(signal.ITIMER_REAL, 1000)
    assert Traces.current().left_since(before) == "a timer that still runs"
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert Traces.current().left_since(before) == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86")
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "to zero"])
def test_another_rounding_is_seen(mode):
    before = Traces.current()
    round_by = ctypes.CDLL(None).fesetround
    round_by(mode)
    try:
        assert Traces.current().left_since(before) == "another rounding of numbers"
    finally:
        round_by(0)
