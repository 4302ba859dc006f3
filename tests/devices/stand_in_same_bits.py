"""Runs on the stand-in device: every bit is that of the same run on the CPU, and tensors lie where
they should."""

from dataclasses import replace

import pytest
import torch

import on_both_devices as both
import stand_in_device
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.scaffold import Scaffold
from fedtailor.core.devices import HOST
from fedtailor.core.errors import ConfigError, FedtailorError
from fedtailor.core.federation import Federation
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.store import Store
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.rounds import simulate
from marks import quick

DEVICE = stand_in_device.register()

ENGINES = {"reference": Reference, "batched": lambda: Batched(3)}
FEW = ("fedavg", "fedpac", pytest.param("pfedfda", marks=pytest.mark.slow))
"""The methods of the shorter tests."""


def compare(method, engine, **options):
    make_engine = ENGINES[engine]
    expected = both.reports(method, make_engine(), HOST, **options)
    found = both.reports(method, make_engine(), DEVICE, **options)
    both.assert_same(found, expected)
    assert both.placed_leaves(found) <= {DEVICE}, "what is kept stays on the device"


@pytest.mark.parametrize("engine", quick(ENGINES, "batched"))
@pytest.mark.parametrize("method", FEW)
def test_a_run_has_the_same_bits(method, engine):
    compare(method, engine)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "module"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", both.METHODS)
def test_a_run_of_every_method_has_the_same_bits(method, engine, model):
    compare(method, engine, data=both.federation(model))


def eight_bits():
    """Return a federation of images of 8 bits."""
    floats = both.federation("cnn")
    x = (
        (40.0 * floats.x + 128.0)
        .clamp(0, 255)
        .to(torch.uint8)
        .contiguous(memory_format=torch.channels_last)
    )
    scale = torch.tensor([[255.0], [0.5], [0.2]])
    return replace(floats, x=x, scale=scale)


class Watching(Reference):
    """Notes the tables that programs receive, and where the inputs of clients lie."""

    def __init__(self):
        self.tables = []
        self.positions = set()

    def map(self, program, common, jobs):
        self.tables.append(common.x)
        self.positions |= {
            each.positions.device for job in jobs for each in (job.inputs.train, job.inputs.test)
        }
        assert {
            common.seed.device,
            common.round.device,
            *(job.inputs.client.device for job in jobs),
        } == {HOST}
        return super().map(program, common, jobs)


@pytest.mark.parametrize("engine", quick(ENGINES, "batched"))
def test_moved_images_of_8_bits_have_the_same_bits(engine):
    training = replace(both.TRAINING, flip=True, crop_padding=1)
    compare("fedavg", engine, data=eight_bits(), training=training)


def test_the_data_is_moved_once_and_stays_as_stored():
    engine = Watching()
    both.reports("fedavg", engine, DEVICE, data=eight_bits())
    table = engine.tables[0]
    assert table.dtype == torch.uint8 and table.device == DEVICE
    assert all(other is table for other in engine.tables)
    assert engine.positions == {DEVICE}


def test_on_the_cpu_a_federation_is_not_copied():
    data = both.federation()
    assert isinstance(data, Federation) and data.on(HOST) is data


@pytest.mark.parametrize("robust", quick(["median", "trimmed_mean", "norm_clip", "krum"], "krum"))
def test_robust_means_have_the_same_bits(robust):
    data = both.federations.make_federation(both.federations.perceptron(), (5, 6, 4, 7, 9), ())
    method = (
        "pfedfda" if robust == "median" else "fedavg"
    )  # a covariance's median is made positive definite
    compare(method, "reference", data=data, robust=robust, robust_share=0.2, personalized_every=0)


@pytest.mark.parametrize("engine", quick(ENGINES, "batched"))
def test_adam_and_clients_that_miss_rounds_have_the_same_bits(engine):
    training = replace(both.TRAINING, optimizer="adam", clip_norm=0.0)
    plan = Participation(plan="fixed", count=2, full_last_round=False)
    compare("scaffold", engine, training=training, participation=plan)


def test_a_tensor_that_an_algorithm_makes_on_the_cpu_fails_its_client_by_name():
    class OnTheCpu(Scaffold):
        def init_client(self, task, info, key):
            made = super().init_client(task, info, key)
            return made._replace(control={name: leaf.cpu() for name, leaf in made.control.items()})

    with pytest.raises(
        FedtailorError, match="that is on the device cpu; it cannot be stored or sent"
    ):
        list(
            simulate(
                OnTheCpu(),
                both.federation(),
                Reference(),
                Schedule(rounds=1),
                seed=0,
                device=DEVICE,
            )
        )


@pytest.mark.slow
def test_the_complete_test_part_has_the_same_bits():
    data = both.federation()
    compare(
        "fedavg",
        "reference",
        data=replace(data, complete=torch.arange(len(data.y))),
    )


@pytest.mark.slow
def test_clients_whose_states_were_in_files_have_the_same_bits(tmp_path):
    runs = []
    for device in (HOST, DEVICE):
        storage = {}

        def stored(name, folder=tmp_path / device.type, storage=storage):
            modules = readable_modules(Scaffold())
            return storage.setdefault(name, Store(folder, name, modules=modules, in_memory=1))

        schedule = Schedule(rounds=3, personalized_every=1)
        found = simulate(
            Scaffold(),
            both.federation(),
            Reference(),
            schedule,
            seed=3,
            storage=stored,
            device=device,
        )
        runs.append(list(found))
        assert list((tmp_path / device.type).glob("states-*")), "one state only is in memory"
    both.assert_same(*runs)


def test_an_engine_of_threads_is_refused_on_the_device():
    with pytest.raises(ConfigError, match=r"engine\.device = 'stand_in:0', got 'workers'"):
        simulate(FedAvg(), both.federation(), Workers(2), Schedule(rounds=1), seed=0, device=DEVICE)
