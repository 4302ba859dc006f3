"""The GPU benchmark, without a GPU: its arms compute the same, what it captures is what a graph would repeat."""

import contextlib
import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_accuracy  # noqa: E402
import gpu_arms  # noqa: E402
import gpu_capture  # noqa: E402
import gpu_device  # noqa: E402
import gpu_step  # noqa: E402
from fedtailor.core import rng  # noqa: E402
from fedtailor.core.task import Training  # noqa: E402
from gpu_arms import ARMS, Eager, Graph, segments  # noqa: E402
from gpu_capture import CaptureError, capture  # noqa: E402
from gpu_work import Layout, draw_sizes, random_work  # noqa: E402

SIZES = (11, 50, 3, 20, 44)
TINY = {"shape": (1, 6, 6), "options": {"hidden": 8}}
OURS = ("graph", "batched", "batched_graph")


@pytest.fixture(autouse=True)
def _precision():
    """Leave the process as it was."""
    places = (torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")
    places += (torch.backends.cudnn, "benchmark"), (torch.backends.cudnn, "deterministic")
    before = [getattr(*place) for place in places]
    yield
    for place, value in zip(places, before, strict=True):
        setattr(*place, value)


def work_of(name, device="cpu", dtype=torch.float64, sizes=SIZES, **options):
    return random_work(name, sizes, device=device, dtype=dtype, batch=8, **options)


def difference(work, a, b):
    return gpu_step.furthest(work, a, work.layout.views(b))


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("name", ["mlp", "cifar_cnn"])
def test_every_arm_computes_the_same(name, channels_last):
    oracle = work_of(name)
    expected = oracle.layout.views(Eager(oracle, 1).round().clone())
    work = work_of(name, channels_last=channels_last)
    for arm, made in ARMS.items():
        assert gpu_step.furthest(work, made(work, 4).round(), expected) <= 1e-10, arm
    assert gpu_step.furthest(work, work.start, expected) > 1e-4


@pytest.mark.parametrize("arm", ["graph", "batched_graph"])
def test_steps_of_a_perceptron_are_recorded_and_replayed(arm):
    work = work_of("mlp", **TINY)
    made = ARMS[arm](work, 4)
    assert {captured.kind for captured in made.captured} == {"recording"}
    assert min(captured.operations for captured in made.captured) > 10
    first = made.round().clone()
    assert torch.equal(first, made.round())  # every round starts anew
    assert made.replays == (13 if arm == "graph" else 7)
    work.start.mul_(1.5)
    assert difference(work, made.round(), Eager(work, 1).round()) <= 1e-10  # not what was true when it was recorded
    assert difference(work, first, made.round()) > 1e-4


def test_convolutions_have_a_stand_in_that_says_so():
    made = Graph(work_of("cifar_cnn", sizes=(9, 3)), 2)
    (described,) = gpu_step.describe(made.captured)
    assert described.startswith("stand-in: it ")


@pytest.mark.parametrize("arm", ["batched", "batched_graph"])
def test_a_finished_client_keeps_parameters_and_momentum(arm):
    work = work_of("mlp", **TINY)
    order = sorted(range(len(SIZES)), key=lambda client: -len(work.plans[client]))
    made = ARMS[arm](work, 4)

    def furthest_lane():
        made.round()
        worst = 0.0
        for lane, client in enumerate(order):
            own = dataclasses.replace(work, rows=[work.rows[client]], plans=[work.plans[client]])
            alone = Eager(own, 1)
            alone.round()
            for stacked, single in zip(made.places, (alone.learner.params, alone.learner.momentum), strict=False):
                worst = max(worst, float((stacked[lane] - single).abs().max()))
        return worst

    assert furthest_lane() <= 1e-10
    made.host[2].fill_(-work.phase.training.lr)  # as if nobody finished: momentum and decay go on without a gradient
    assert furthest_lane() > 1e-5


def test_the_stack_shrinks_as_clients_finish():
    assert segments([7, 6, 3, 2, 1]) == [(5, 1), (4, 2), (2, 3), (1, 1)]
    assert segments([4, 4, 4]) == [(3, 4)]
    assert segments([5]) == [(1, 5)]
    lengths = sorted((-(-size // 50) for size in draw_sizes(0.1)), reverse=True)
    widths = [width for width, count in segments(lengths) for _ in range(count)]
    assert len(widths) == lengths[0]
    assert all(width >= sum(length > step for length in lengths) for step, width in enumerate(widths))


@pytest.mark.parametrize("channels_last", [True, False])
def test_leaves_in_a_vector(channels_last):
    layout = Layout([(4, 3, 2, 2), (4,), (5, 7)], channels_last=channels_last)
    leaves = [torch.randn(6, *shape) for shape in layout.shapes]
    stack = layout.join(leaves)
    assert stack.shape == (6, 64 + 32 + 64)
    assert all(map(torch.equal, layout.views(stack), leaves))
    assert all(view.data_ptr() % 128 == stack.data_ptr() % 128 for view in layout.views(stack[0]))


# capture


def test_a_capture_leaves_its_places_and_replays():
    place, other = torch.zeros(3), torch.ones(3)

    def function(place):
        place.add_(other)
        return [place * 2]

    captured = capture(function, [place], [other])
    assert captured.kind == "recording"
    assert torch.equal(place, torch.zeros(3))
    captured.replay()
    other.fill_(4)
    captured.replay()
    assert torch.equal(place, torch.full((3,), 5.0))
    assert torch.equal(captured.outputs[0], torch.full((3,), 10.0))


@pytest.mark.parametrize(
    "read",
    [
        lambda place: place.add_(place.sum().item()),
        lambda place: place.add_(place.tolist()[0]),
        lambda place: place.add_(1) if place.sum() > 0 else place,
        lambda place: place.nonzero(),
        lambda place: place[place > 0],
        lambda place: place.cpu(),
        lambda place: place.normal_(),
    ],
)
@pytest.mark.parametrize("size", [3, 2**21])  # of a recording, and of a stand-in
def test_a_capture_refuses_what_a_graph_could_not_repeat(read, size):
    place = torch.zeros(size)

    def function(place):
        read(place)
        return []

    with pytest.raises(CaptureError, match=r"on the host|random"):
        capture(function, [place])


def test_a_capture_refuses_changes_of_other_tensors():
    other = torch.zeros(3)
    with pytest.raises(CaptureError, match="not its arguments"):
        capture(lambda place: [other.add_(place)], [torch.ones(3)], [other])


class FakeGraph:
    replayed = 0

    def replay(self):
        self.replayed += 1


@pytest.fixture
def fake_cuda(monkeypatch):
    """Stand-ins for what of CUDA a capture uses; a function that is captured runs, as on a CPU."""
    log = []

    class Stream:
        def wait_stream(self, other):
            log.append("wait")

    @contextlib.contextmanager
    def entered(what):
        log.append(what)
        yield

    fakes = {
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: entered("side stream"),
        "synchronize": lambda: log.append("synchronize"),
        "empty_cache": lambda: log.append("empty cache"),
        "CUDAGraph": FakeGraph,
        "graph": lambda graph, pool=None: entered("capture"),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return log


def test_warm_up_runs_of_a_graph_are_taken_back(fake_cuda):
    place, seen = torch.zeros(1), []

    def function(place):
        seen.append(float(place))
        place.add_(1)
        return []

    captured = gpu_capture._capture_graph(function, [place], None)
    assert captured.kind == "CUDA graph"
    assert seen == [0.0] * (gpu_capture.WARM_UPS + 1)  # no run sees what another did: counters stay in range
    assert float(place) == 0
    assert fake_cuda == ["wait", "side stream", "wait", "synchronize", "empty cache", "capture", "synchronize"]
    captured.replay()
    assert captured.replay.__self__.replayed == 1


def test_a_graph_that_cannot_be_captured_says_why(fake_cuda):
    def function(place):
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(CaptureError, match=r"no CUDA graph: RuntimeError: .*capturing"):
        gpu_capture._capture_graph(function, [torch.zeros(1)], None)


# devices


@pytest.mark.parametrize(
    ("name", "arm"),
    [*((name, arm) for name in ("mlp", "cifar_cnn") for arm in ("eager", *OURS)), ("resnet18", "batched")],
)
def test_rounds_stay_on_the_device(name, arm, monkeypatch):
    """A device that is not the CPU, on which nothing is computed: mixing devices and reading values are errors."""
    monkeypatch.setattr(torch, "_fused_sgd_", gpu_capture.plain_sgd)  # the fused form does not know fake tensors
    work = random_work(name, (3, 11, 20), device="cpu", batch=8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        there = {part: getattr(work, part).to("meta") for part in ("x", "y", "scale", "start")}
        placed = dataclasses.replace(work, **there)
        assert ARMS[arm](placed, 2).round().device.type == "meta"
        left = dataclasses.replace(placed, scale=work.scale)  # one tensor left on the host is found
        with pytest.raises(Exception, match="device"):
            ARMS[arm](left, 2).round()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("name", ["mlp", "cifar_cnn"])
def test_arms_on_a_gpu(name, arm):
    arguments = gpu_step.options().parse_args(["--device", "cuda"])
    assert gpu_step.check(name, arm, arguments) <= 1e-10


# the commands


class Broken(Eager):
    def round(self):
        raise RuntimeError("out of memory")


class Wrong(Eager):
    def round(self):
        return super().round() * 1.001


class Undefined(Eager):
    def round(self):
        return super().round() * float("nan")


class WrongWhenTimed(Eager):
    def round(self):
        return super().round() + (self.total.dtype == torch.float32)


def test_an_arm_that_fails_or_is_wrong_does_not_stop_the_others(tmp_path, monkeypatch):
    broken = {"peer": ARMS["peer"], "broken": Broken, "eager": Eager, "wrong": Wrong, "nan": Undefined, "graph": Graph}
    broken["late"] = WrongWhenTimed
    monkeypatch.setattr(gpu_step, "ARMS", broken)
    file = tmp_path / "record.json"
    given = ["--model", "mlp", "--device", "cpu", "--clients", "3", "--examples", "3000", "--rounds", "1"]
    arguments = gpu_step.options().parse_args([*given, "--warmup", "0", "--json", str(file), "--quiet"])
    record = gpu_step.run(arguments)
    rows = record["arms"]
    assert {arm: row["status"] for arm, row in rows.items()} == {
        "peer": "ok", "broken": "failed", "eager": "ok", "wrong": "wrong", "nan": "wrong", "graph": "ok",
        "late": "wrong",
    }  # fmt: skip
    assert rows["broken"]["reason"] == "RuntimeError: out of memory"
    assert "seconds_per_round" not in rows["wrong"]
    assert rows["graph"]["difference_float32"] < 1e-6
    assert rows["graph"]["speedup_over_peer"] > 0
    assert "seconds_per_round" in rows["late"]  # of the timed work: its time is kept
    assert rows["eager"]["launches_per_client_step"] > 1
    assert json.loads(file.read_text()) == json.loads(json.dumps(record))
    shown = gpu_step.table(record)
    assert "failed: RuntimeError: out of memory" in shown
    late = next(line for line in shown.splitlines() if line.startswith("late"))
    assert f"{rows['late']['seconds_per_round']:.4f}" in late
    assert "wrong: differs" in late
    assert "stand-in" in shown or "recording" in shown


def test_launches_are_counted_in_a_part_and_scaled():
    arguments = gpu_step.options().parse_args(["--device", "cpu"])
    work = work_of("mlp", sizes=(200, 150, 9))  # of 25, 19 and 2 steps
    found = {arm: gpu_step.count_launches(arm, work, arguments) for arm in ("peer", "eager", "batched")}
    assert {arm: row["launches_counted"]["clients"] for arm, row in found.items()} == {
        "peer": 2, "eager": 2, "batched": 3,
    }  # fmt: skip
    assert {row["launches_counted"]["steps_of_each_at_most"] for row in found.values()} == {gpu_step.COUNTED}
    for arm, row in found.items():
        whole = gpu_step.count_calls(ARMS[arm](work, 4).round, "cpu")["operators"] / work.steps
        assert row["launches_per_client_step"] == pytest.approx(whole, rel=0.1), arm


def test_memory_of_a_graph_is_what_is_allocated_and_its_pool(monkeypatch):
    log, mib = [], 2**20
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: log.append(name))
    for name, size in {"memory_reserved": 9, "memory_allocated": 4, "max_memory_allocated": 6}.items():
        monkeypatch.setattr(torch.cuda, name, lambda size=size: size * mib)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 12 * mib)
    pools = gpu_device.settle_memory("cuda")
    assert log == ["synchronize", "empty_cache", "reset_peak_memory_stats"]
    assert gpu_device.peak_memory("cuda", pools) == {"peak_mib": 11, "graph_pools_mib": 5, "peak_mib_reserved": 12}


def test_arms_after_a_dead_device_run_in_a_new_process(tmp_path, monkeypatch):
    given = "--model mlp --device cpu --clients 2 --examples 300 --rounds 1 --warmup 0".split()
    monkeypatch.setattr(sys, "argv", ["gpu_step.py", *given])
    monkeypatch.setattr(gpu_step, "usable", lambda device: False)
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent / "src"))
    record = gpu_step.run(gpu_step.options().parse_args([*given, "--arms", "peer", "eager", "--quiet"]))
    assert {arm: row["status"] for arm, row in record["arms"].items()} == {"peer": "ok", "eager": "ok"}
    assert record["arms"]["eager"]["speedup_over_peer"] > 0


def test_graph_replays_and_the_reference_engine_train_the_same_models():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 28, 28, 1), generator=generator, dtype=torch.uint8).movedim(-1, 1)
    data = x, torch.randint(10, (60,), generator=generator), torch.tensor([[255.0], [0.5], [0.5]])
    test = torch.arange(50, 60)
    rows = gpu_accuracy.divide(data[1], test, 3, 40)
    assert sorted(torch.cat(rows).tolist()) == sorted(set(torch.cat(rows).tolist()))
    assert max(torch.cat(rows)) < 50
    phase = gpu_accuracy.make_phase(
        "emnist_cnn", (1, 28, 28), 10, Training(lr=0.05, momentum=0.5, batch_size=8, epochs=2)
    )
    model = phase.task.model.init(rng.new_key(0))
    plans = gpu_accuracy.make_plans(phase, rows, lambda client: gpu_accuracy.client_key(1, client))
    work = gpu_accuracy.place("emnist_cnn", phase, data, rows, plans, model, device="cpu", dtype=torch.float32)
    ours = gpu_accuracy.by_graph(work, Graph(work, 2), 2)
    for theirs in gpu_accuracy.by_reference(phase, data, rows, model, 2):
        mine = next(ours)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, theirs, strict=True))
    assert gpu_accuracy.accuracy(phase, data, test, mine, work) * 10 % 1 == pytest.approx(0, abs=1e-9)
    assert max(float((a - b).abs().max()) for a, b in zip(mine, model.values(), strict=True)) > 1e-3


def test_the_script_names_what_there_is():
    script = BENCHMARKS / "gpu.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    parts = [shlex.split(line.strip()) for line in script.read_text().splitlines() if re.match(r"\s*part \d", line)]
    assert len(parts) == 9
    for _, _, name, file, *given in parts:
        assert (BENCHMARKS.parent / file).is_file()
        module = {"gpu_step": gpu_step, "gpu_accuracy": gpu_accuracy}[Path(file).stem]
        arguments = module.options().parse_args([*given, "--device", "cuda", "--json", f"{name}.json"])
        assert name.startswith(Path(file).stem)
        assert getattr(arguments, "model", "") in name
    kill = int(re.search(r"timeout -k (\d+)", script.read_text())[1])
    assert sum(int(part[1]) + kill for part in parts) < 480
    assert len({part[2] for part in parts}) == len(parts)


def test_nothing_but_torch_and_numpy_is_needed():
    absent = "scipy sklearn safetensors typer rich tomli_w jaxtyping PIL requests altair vl_convert".split()
    program = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
sys.path[:0] = {[str(BENCHMARKS), str(BENCHMARKS.parent / "src")]}
import torch, gpu_accuracy, gpu_step
from gpu_work import MODELS, random_work
for name in MODELS:
    random_work(name, (3,), device="cpu")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_models_of_the_peer_have_the_parameters_of_ours():
    for name, setting in gpu_step.MODELS.items():
        shapes = random_work(name, (3,), device="cpu", dtype=torch.float32).layout.shapes
        module = gpu_arms.peer_module(name, setting["classes"])
        assert [tuple(parameter.shape) for parameter in module.parameters()] == shapes
