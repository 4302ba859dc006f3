"""pFedGP against Achituve et al. 2021, in loops over splits and chains: Gibbs sampling with inverse
matrices, the loss of half of the examples, and predictions. Gradients are finite differences."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtailor.algorithms import _gaussian_process_tree as processes
from fedtailor.algorithms.pfedgp import PFedGP
from fedtailor.core.algorithm import Download
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from golden import harness
from golden.network import BODY, average, features

LABELS = (*harness.LABELS, [0, 0, 0], [1, 1, 2, 1, 2])
TRAINING = Training(lr=0.3, momentum=0.5, weight_decay=0.02, epochs=1, batch_size=0)
POINTS, SHARES = np.polynomial.hermite.hermgauss(20)


@pytest.fixture
def draws(recorder, monkeypatch):
    """Keep the random numbers of every visit, after which examples are judged."""
    found = {}

    def keep(name):
        original = getattr(processes, name)

        def kept(*arguments, **options):
            result = original(*arguments, **options)
            found.setdefault(id(recorder.current), []).append(result)
            return result

        monkeypatch.setattr(processes, name, kept)

    keep("judged_half")
    keep("draw")
    return found


def kernel(z, other):
    u = z / np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
    v = other / np.linalg.norm(other, axis=1, keepdims=True).clip(1e-12)
    return np.array([[8 * math.exp(-((a - b) ** 2).sum() / 2) for b in v] for a in u])


def splits_of(z, y):
    """Return the groups on both sides of every split: the best division in two of class means."""
    means = {c: z[y == c].mean(0) for c in sorted(set(y.tolist()))}
    groups = [list(means)]
    splits = []
    while any(len(group) > 1 for group in groups):
        place = next(number for number, group in enumerate(groups) if len(group) > 1)
        group = groups[place]
        divisions = [
            (left, [c for c in group if c not in left])
            for size in range(1, len(group))
            for left in itertools.combinations(group, size)
            if group[0] in left
        ]

        def spread(part, means=means):
            points = np.array([means[c] for c in part])
            return ((points - points.mean(0)) ** 2).sum()

        left, right = min(divisions, key=lambda parts: sum(map(spread, parts)))
        splits.append((set(left), set(right)))
        groups[place] = list(left)
        groups.append(right)
    return splits


def polya_gamma(c, exponentials):
    total = 0.0
    rest = 0.25 if c == 0 else math.tanh(c / 2) / (2 * c)
    for k, g in enumerate(exponentials, 1):
        term = 1 / ((k - 0.5) ** 2 + c**2 / (4 * math.pi**2)) / (2 * math.pi**2)
        total += term * g
        rest -= term
    return total + max(rest, 0.0)


def gibbs(known, kappa, exponential, standard, noise):
    """Return omega of the examples of a split, in one chain."""
    prior = np.linalg.cholesky(known) @ standard

    def omega_of(f, step):
        return np.array([polya_gamma(c, g) for c, g in zip(f, exponential[:, step], strict=True)])

    omega = omega_of(prior[:, 0], 0)
    for step in range(noise.shape[1]):
        f = prior[:, step + 1]
        inverse = np.linalg.inv(known + np.diag(1 / omega))
        f = f + known @ inverse @ (kappa / omega - f - noise[:, step] / np.sqrt(omega))
        omega = omega_of(f, step + 1)
    return omega


def left_of(matrix, cross, variance, rows, kappa, omega):
    """Return the probability of the left side for every new example, given omega."""
    inverse = np.linalg.inv(matrix[np.ix_(rows, rows)] + np.diag(1 / omega))
    result = []
    for k, v in zip(cross[rows].T, variance, strict=True):
        mean = k @ inverse @ (kappa / omega)
        deviation = math.sqrt(max(v - k @ inverse @ k, 1e-12))
        values = mean + math.sqrt(2) * deviation * POINTS
        result.append(SHARES @ (1 / (1 + np.exp(-values))) / math.sqrt(math.pi))
    return np.array(result)


def sides_of(y, split, allowed):
    """Return 1/2 for examples on the left, -1/2 on the right, 0 for others."""
    left, right = split
    return np.array(
        [
            0.5 * (c in left) - 0.5 * (c in right) if ok else 0.0
            for c, ok in zip(y, allowed, strict=True)
        ]
    )


def loss_of(w, x, y, splits, judged, omegas):
    """Return the loss for given omega, by split and chain."""
    z = features(w, x)
    matrix = kernel(z, z) + 1e-3 * np.eye(len(y))
    total = 0.0
    for number, split in enumerate(splits):
        kappa = sides_of(y, split, ~judged)
        rows = np.flatnonzero(kappa)
        asked = sides_of(y, split, judged)
        ask = np.flatnonzero(asked)
        if not len(ask):
            continue
        left = np.mean(
            [
                left_of(matrix, matrix[:, ask], np.diag(matrix)[ask], rows, kappa[rows], omega)
                for omega in omegas[number]
            ],
            axis=0,
        )
        right_side = np.where(asked[ask] > 0, left, 1 - left)
        total -= np.log(right_side).mean()
    return total


def omegas_of(w, x, y, splits, allowed, draws):
    """Return omega by split and chain; the draws are those of one split after another."""
    z = features(w, x)
    matrix = kernel(z, z) + 1e-3 * np.eye(len(y))
    left = [numbers.numpy() for numbers in draws]
    found = []
    for split in splits:
        kappa = sides_of(y, split, allowed)
        rows = np.flatnonzero(kappa)
        known = matrix[np.ix_(rows, rows)]
        own = [numbers[: len(rows)] for numbers in left]
        left = [numbers[len(rows) :] for numbers in left]
        chains = range(own[0].shape[1])
        found.append(
            [gibbs(known, kappa[rows], *(numbers[:, chain] for numbers in own)) for chain in chains]
        )
    assert len(left[0]) == 0
    return found


def slope(w, x, y, splits, judged, omegas, step=1e-6):
    """Return the gradient in the body by central differences."""
    result = {}
    for name in BODY:
        result[name] = np.zeros_like(w[name])
        for place in np.ndindex(w[name].shape):
            ends = []
            for sign in (1, -1):
                moved = {**w, name: w[name].copy()}
                moved[name][place] += sign * step
                ends.append(loss_of(moved, x, y, splits, judged, omegas))
            result[name][place] = (ends[0] - ends[1]) / (2 * step)
    return result


def test_two_rounds(recorder, draws):
    federation = harness.make_federation(LABELS, num_new=1)
    algorithm = PFedGP(training=TRAINING, gibbs_steps=2, training_chains=3, chains=4)
    recorder.run(algorithm, federation)
    body = harness.part(harness.initial(federation), BODY)
    for round in (1, 2):
        trained = []
        for client in (0, 1, 2):
            visit = recorder.visit(round, "train", client)
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            (batch,) = batches
            assert sorted(batch) == list(range(len(y)))
            splits = splits_of(features(body, x), y)
            x, y = x[batch], y[batch]

            judged, numbers = draws[id(visit)]
            judged = judged.numpy() > 0
            for c in set(y.tolist()):
                assert judged[y == c].sum() == (y == c).sum() // 2
            omegas = omegas_of(body, x, y, splits, ~judged, numbers)
            gradient = slope(body, x, y, splits, judged, omegas)
            w = {name: body[name] - 0.3 * (gradient[name] + 0.02 * body[name]) for name in BODY}
            harness.assert_close(visit.output[1]["body"].value, w, 1e-7)
            assert client != 2 or all((leaf == 0).all() for leaf in gradient.values())
            trained.append(visit.output[1]["body"].value)

        body = average([harness.arrays(w) for w in trained], [1, 1, 1])
        for client in (0, 1, 2, 3):
            assert_predictions(
                recorder.visit(round, "personalize", client),
                federation,
                client,
                body,
                draws,
                algorithm,
            )


def assert_predictions(visit, federation, client, body, draws, algorithm):
    x, y = harness.examples(federation, client)
    splits = splits_of(features(body, x), y)
    (numbers,) = draws[id(visit)]
    omegas = omegas_of(body, x, y, splits, np.ones(len(y), bool), numbers)

    test, labels = harness.examples(federation, client, "test")
    known = features(body, x)
    new = features(body, test)
    matrix = kernel(known, known) + 1e-3 * np.eye(len(y))
    cross = kernel(known, new)
    expected = np.ones((len(test), harness.CLASSES))
    for number, split in enumerate(splits):
        kappa = sides_of(y, split, np.ones(len(y), bool))
        rows = np.flatnonzero(kappa)
        left = np.mean(
            [
                left_of(matrix, cross, np.full(len(test), 8.001), rows, kappa[rows], omega)
                for omega in omegas[number]
            ],
            axis=0,
        )
        for c in split[0]:
            expected[:, c] *= left
        for c in split[1]:
            expected[:, c] *= 1 - left
    expected[:, [c for c in range(harness.CLASSES) if c not in y]] = 0

    personal, _, by_set = visit.output
    given = algorithm.predict(federation.common_task, personal, torch.from_numpy(test)).exp()
    assert np.abs(given.numpy() - expected).max() < 1e-9
    assert np.allclose(given.sum(1), 1)
    right = expected.argmax(1) == labels
    correct = np.bincount(labels[right], minlength=harness.CLASSES)
    assert by_set["clients"].class_correct.tolist() == correct.tolist()


@pytest.mark.parametrize("c", [0.0, 0.5, 4.0])
def test_polya_gamma_variables_have_their_mean_and_variance(c):
    uniform = np.random.default_rng(0).uniform(size=(100_000, 20))
    drawn = processes.polya_gamma(torch.full((100_000,), c), torch.from_numpy(-np.log1p(-uniform)))
    mean = math.tanh(c / 2) / (2 * c) if c else 1 / 4
    variance = (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2) if c else 1 / 24
    assert abs(float(drawn.mean()) - mean) < 5 * math.sqrt(variance / 100_000)
    assert abs(float(drawn.var()) / variance - 1) < 0.03


def test_gibbs_sampling_finds_the_posterior():
    """Of two examples, compared with a sum over a grid of both values of f."""
    z = torch.tensor([[1.0, 0.0], [0.2, 1.0], [0.9, 0.5]])
    u = processes.directions(z)
    kappa = torch.tensor([[0.5, -0.5, 0.0]])
    omega = processes.sample_splits(u, kappa, new_key(0), chains=4000, steps=20)
    left = processes.predict_splits(u, kappa, omega, u[2:])

    k = kernel(z.numpy(), z.numpy()) + 1e-3 * np.eye(3)
    axis = np.linspace(-12, 12, 121)
    grid = np.array(list(itertools.product(axis, axis)))
    inverse = np.linalg.inv(k[:2, :2])
    log_prior = -0.5 * np.einsum("ni,ij,nj->n", grid, inverse, grid)
    weight = np.exp(log_prior) / (1 + np.exp(-grid[:, 0])) / (1 + np.exp(grid[:, 1]))
    means = grid @ inverse @ k[:2, 2]
    deviation = math.sqrt(k[2, 2] - k[2, :2] @ inverse @ k[:2, 2])
    values = means[:, None] + math.sqrt(2) * deviation * POINTS
    expected = (1 / (1 + np.exp(-values))) @ SHARES / math.sqrt(math.pi)
    assert abs(float(left) - weight @ expected / weight.sum()) < 0.01


def test_the_tree_divides_far_classes_first():
    """Four classes in two pairs; the fifth has no examples."""
    means = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0], [10.0, 2.0], [5.0, 5.0]])
    tree = processes.grow(means, torch.tensor([True, True, True, True, False]))
    sides = [
        tuple(tuple(torch.nonzero(part[number]).flatten().tolist()) for part in tree)
        for number in range(4)
    ]
    assert {frozenset(pair) for pair in sides[:1]} == {frozenset({(0, 2), (1, 3)})}
    assert {frozenset(pair) for pair in sides[1:3]} == {
        frozenset({(0,), (2,)}),
        frozenset({(1,), (3,)}),
    }
    assert sides[3] == ((), ())


def test_equal_means_are_divided_too():
    tree = processes.grow(torch.zeros(3, 2), torch.ones(3, dtype=torch.bool))
    assert tree.left.sum(1).tolist() == [2.0, 1.0] or tree.right.sum(1).tolist() == [2.0, 1.0]
    assert ((tree.left - tree.right).abs().sum(1) == torch.tensor([3.0, 2.0])).all()


def test_without_examples_all_classes_are_alike():
    federation = harness.make_federation(([0, 1], []))
    algorithm = replace(PFedGP(training=TRAINING), chains=2)
    task = algorithm.bind(federation.common_task)
    download = Download(algorithm.init_server(task, new_key(0)))
    personal = algorithm.personalize(task, download, (), federation.data(1), new_key(1))
    assert (algorithm.predict(task, personal, torch.zeros(2, harness.INPUTS)) == 0).all()


def test_splits_alone_or_together_or_stacked_find_the_same(monkeypatch):
    """Five classes of four examples; the sixth has none. The last row is padding."""
    u = processes.directions(torch.from_numpy(np.random.default_rng(0).normal(size=(21, 3))))
    u.requires_grad_()
    labels = torch.tensor([*range(5), *range(5), *range(5), *range(5), 5])
    counts = torch.ones(21)
    counts[-1] = 0
    means = torch.stack([u[labels == c].mean(0) for c in range(6)]).detach()
    tree = processes.grow(means, torch.arange(6) < 5)
    kappa = tree.targets(labels, counts)
    sizes = [int((row != 0).sum()) for row in kappa]
    assert max(sizes) > 8 and min(size for size in sizes if size) <= 8 and sizes[-1] == 0

    def find(u):
        key = new_key(0)
        omega = processes.sample_splits(u.detach(), kappa, key, chains=3, steps=2)
        left = processes.predict_splits(u, kappa, omega, u[:2])
        loss = processes.half_loss(u, labels, counts, tree, key, chains=3, steps=2)
        return omega, left, loss

    found = []
    for few in (0, 8, 32):
        monkeypatch.setattr(processes, "_FEW", few)
        omega, left, loss = find(u)
        found.append((omega, left, loss, torch.autograd.grad(loss, u)[0]))

    stacked = torch.func.vmap(find)(u[None])
    found.append((*(one[0] for one in stacked), torch.autograd.grad(stacked[2].sum(), u)[0]))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert (one - other).abs().max() < 1e-12

    omega, *_, slope = found[0]
    assert ((omega > 0) == (kappa != 0).T[:, None]).all()
    assert (slope[:-1] != 0).any(1).all() and (slope[-1] == 0).all()


def test_two_means_end_where_nothing_changes_any_more():
    """Under ``vmap`` they never end early."""
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(100, 12, 4)))
    inside = torch.ones(12, dtype=torch.bool)
    stacked = torch.func.vmap(lambda means: processes.second_of_two_means(means, inside))(points)
    alone = [processes.second_of_two_means(means, inside) for means in points]
    assert torch.equal(torch.stack(alone), stacked)
