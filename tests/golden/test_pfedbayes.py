"""pFedBayes against Algorithm 1 of Zhang et al. 2022, in NumPy: q by data and p, then p by the new
q, both by Adam."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from federations import make_federation, module
from fedtailor.algorithms.pfedbayes import PFedBayes
from fedtailor.core.rng import normal
from fedtailor.core.task import Training
from fedtailor.statistics import gaussian_heads
from fedtailor.statistics.gaussian_heads import HeadPosterior, divergence_between
from golden import harness
from golden.network import ALL, confusion, cross_entropy, gradient, logits
from marks import slow

TRAINING = Training(epochs=2, batch_size=5)
FAST = {"personal_lr": 0.02, "global_lr": 0.05}
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def noises(recorder, monkeypatch):
    """Keep the keys of the noise of every step with what the recorder keeps of a program."""
    original = gaussian_heads.normal

    def recorded(key, shape):
        vars(recorder.current).setdefault("noises", []).append((key, shape))
        return original(key, shape)

    monkeypatch.setattr(gaussian_heads, "normal", recorded)


def drawn(visit):
    """Return the noise (draws, D) of every step."""
    return [normal(key, shape).numpy() for key, shape in visit.noises]


def sigma(raw):
    return np.log1p(np.exp(raw))


class Adam:
    """Kingma and Ba 2015."""

    def __init__(self, lr):
        self.lr, self.step, self.m, self.v = lr, 0, {}, {}

    def move(self, values, slopes):
        self.step += 1
        moved = {}
        for name, g in slopes.items():
            self.m[name] = 0.9 * self.m.get(name, 0) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, 0) + 0.001 * g**2
            m, v = self.m[name] / (1 - 0.9**self.step), self.v[name] / (1 - 0.999**self.step)
            moved[name] = values[name] - self.lr * m / (np.sqrt(v) + 1e-8)
        return moved


def draw(q, noise):
    """Weights of one draw, and the noise by name."""
    parts, start = {}, 0
    for name in ALL:
        size = q[name, 0].size
        parts[name] = noise[start : start + size].reshape(q[name, 0].shape)
        start += size
    return {name: q[name, 0] + sigma(q[name, 1]) * parts[name] for name in ALL}, parts


def round_of(q, p, x, y, batches, noises, algorithm, global_lr=None):
    """One round of a client; a Gaussian is {(name, 0): mean, (name, 1): raw}. Returns q, p and the
    mean loss."""
    zeta, values = algorithm.penalty, []
    own, copy = (
        Adam(algorithm.personal_lr),
        Adam(algorithm.global_lr if global_lr is None else global_lr),
    )
    for batch, noise in zip(batches, noises, strict=True):
        slope, value = {key: np.zeros_like(leaf) for key, leaf in q.items()}, 0.0
        for eps in noise:
            w, parts = draw(q, eps)
            g = gradient(w, x[batch], y[batch])
            value += len(y) * cross_entropy(logits(w, x[batch]), y[batch]) / len(noise)
            for name in ALL:
                slope[name, 0] += len(y) * g[name] / len(noise)
                slope[name, 1] += len(y) * g[name] * parts[name] / len(noise)
        for name in ALL:
            (mq, rq), (mp, rp) = ((one[name, 0], one[name, 1]) for one in (q, p))
            sq, sp = sigma(rq), sigma(rp)
            value += zeta * (np.log(sp / sq) + (sq**2 + (mq - mp) ** 2) / (2 * sp**2) - 0.5).sum()
            slope[name, 0] += zeta * (mq - mp) / sp**2
            slope[name, 1] = (slope[name, 1] + zeta * (sq / sp**2 - 1 / sq)) / (1 + np.exp(-rq))
        values.append(value)
        q, slope = own.move(q, slope), {}
        for name in ALL:
            (mq, rq), (mp, rp) = ((one[name, 0], one[name, 1]) for one in (q, p))
            sq, sp = sigma(rq), sigma(rp)
            slope[name, 0] = zeta * (mp - mq) / sp**2
            slope[name, 1] = zeta * (1 / sp - (sq**2 + (mq - mp) ** 2) / sp**3) / (1 + np.exp(-rp))
        p = copy.move(p, slope)
    return q, p, np.mean(values)


def initial(federation, scale):
    mean = harness.initial(federation)
    raw = math.log(math.expm1(scale))
    return {(n, i): mean[n] if i == 0 else np.full_like(mean[n], raw) for n in ALL for i in (0, 1)}


def assert_gaussian(given, expected, tolerance=TOLERANCE):
    harness.assert_close(given.mean, {name: expected[name, 0] for name in ALL}, tolerance)
    harness.assert_close(given.raw, {name: expected[name, 1] for name in ALL}, tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"draws": 3, "mixing": 0.25, "penalty": 2.0, "initial_scale": 0.3},
        slow({"penalty": 0.5}),
    ],
)
def test_two_rounds(recorder, options):
    """Likelihood scaled to n_i, rho averaged and not sigma, equal weights, q from q and p from the
    download."""
    federation = harness.make_federation()
    algorithm = PFedBayes(training=TRAINING, **FAST, **options)
    recorder.run(algorithm, federation)
    p = initial(federation, algorithm.initial_scale)
    q = {0: p, 1: p}
    for round in (1, 2):
        copies = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            assert_gaussian(visit.shared, p)
            (batches,) = visit.plans
            x, y = harness.examples(federation, client)
            harness.assert_epochs(batches, len(y), 5, 2)
            noise = drawn(visit)
            assert {eps.shape for eps in noise} == {(algorithm.draws, 4 * 4 + 3 * 5)}
            assert len({eps.tobytes() for eps in noise}) == len(batches)
            q[client], copy, loss = round_of(q[client], p, x, y, batches, noise, algorithm)
            copies.append(copy)
            state, upload, metrics, scores, *_ = visit.output
            assert_scores(scores, q[client], *harness.examples(federation, client, "test"))
            assert_gaussian(state.own, q[client])
            assert_gaussian(HeadPosterior(upload["mean"].value, upload["raw"].value), copy)
            assert float(upload["mean"].weight) == float(upload["raw"].weight) == 1.0
            assert int(metrics["steps"]) == len(batches)
            assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-9)
        beta = algorithm.mixing
        p = {key: (1 - beta) * p[key] + beta * (copies[0][key] + copies[1][key]) / 2 for key in p}
        for client in (0, 1):
            x, y = harness.examples(federation, client, "test")
            scores = recorder.visit(round, "personalize", client).output[2]["clients"]
            for found, own in (
                (recorder.visit(round, "score", client).output, p),
                (scores, q[client]),
            ):
                assert_scores(found, own, x, y)


def assert_scores(found, gaussian, x, y):
    """Compare scores with those of a Gaussian's mean."""
    correct, loss = confusion(logits({name: gaussian[name, 0] for name in ALL}, x), y)
    assert found.class_correct.tolist() == correct.tolist()
    assert abs(float(found.loss_sum) - loss) < 1e-8


def test_a_new_client_trains_q_alone_from_p(recorder):
    federation = harness.make_federation((*harness.LABELS, [0, 2, 2, 1, 0, 2]), num_new=1)
    algorithm = PFedBayes(training=TRAINING, **FAST)
    recorder.run(algorithm, federation)
    visit = recorder.visit(2, "personalize", 2)
    p = {(name, i): part[name].numpy() for name in ALL for i, part in enumerate(visit.shared)}
    x, y = harness.examples(federation, 2)
    q, still, _ = round_of(p, p, x, y, visit.plans[0], drawn(visit), algorithm, global_lr=0.0)
    assert all(np.array_equal(still[key], p[key]) for key in p)
    harness.assert_close(visit.output[0], {name: q[name, 0] for name in ALL}, TOLERANCE)


def test_the_divergence_is_that_of_normals_with_its_gradients_and_of_samples():
    """KL(q, q) = 0 with gradients of exactly 0; otherwise the closed form agrees with torch and
    with sampling."""
    generator = torch.Generator().manual_seed(0)
    raws = [torch.randn(7, generator=generator, requires_grad=True) for _ in range(2)]
    means = [torch.randn(7, generator=generator, requires_grad=True) for _ in range(2)]
    q, p = (HeadPosterior({"a": mean}, {"a": raw}) for mean, raw in zip(means, raws, strict=True))
    normals = [Normal(one.mean["a"], one.deviation()["a"]) for one in (q, p)]
    given, expected = divergence_between(q, p), kl_divergence(*normals).sum()
    torch.testing.assert_close(given, expected)
    leaves = [*means, *raws]
    pairs = zip(
        torch.autograd.grad(given, leaves), torch.autograd.grad(expected, leaves), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    noise = torch.randn(200_000, 7, generator=generator)
    with torch.no_grad():
        w = normals[0].loc + normals[0].scale * noise
        gaps = (normals[0].log_prob(w) - normals[1].log_prob(w)).sum(1)
        assert abs(float(gaps.mean() - given)) < 5 * float(gaps.std()) / len(gaps) ** 0.5
    same = divergence_between(q, HeadPosterior({"a": means[0].clone()}, {"a": raws[0].clone()}))
    assert float(same.detach()) == 0
    assert all(not slope.any() for slope in torch.autograd.grad(same, [means[0], raws[0]]))


def test_buffers_are_averaged_and_have_no_deviation(recorder):
    federation = make_federation(module(), (6, 9), ())
    recorder.run(PFedBayes(training=TRAINING), federation, rounds=1)
    outputs = [recorder.visit(1, "train", client).output for client in (0, 1)]
    names = federation.common_task.names("buffer")
    final = recorder.visit(1, "personalize", 0).shared.mean
    for name in names:
        assert all(name not in output[1]["raw"].value for output in outputs)
        sent = [output[1]["mean"].value[name] for output in outputs]
        assert all(
            torch.equal(value, output[0].own.mean[name])
            for value, output in zip(sent, outputs, strict=True)
        )
        torch.testing.assert_close(final[name], (sent[0] + sent[1]) / 2)
    assert any(
        not torch.equal(*(output[1]["mean"].value[name] for output in outputs)) for name in names
    )
