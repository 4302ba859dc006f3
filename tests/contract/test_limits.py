"""Degenerate settings under which one algorithm must equal another, or plain PyTorch."""

from dataclasses import replace

import pytest
import torch

from contract.cases import ALGORITHMS, EXEMPTIONS, TRAINING, build, oracle, small_federation
from federations import make_federation, perceptron
from fedtailor.core import tree
from fedtailor.core.federation import UNSCALED
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.programs import SharedInputs, client_inputs, client_key
from fedtailor.testing.runs import assert_same_bits, run, scores_of
from plain_torch import fit, module_of, params_of, planned

PLAIN = Training(epochs=2, batch_size=4, lr=0.1)
ROUNDS = 3


def close(first, second, tolerance=1e-12):
    leaves = tree.paths(first)
    others = tree.paths(second)
    assert list(leaves) == list(others)
    return all(
        torch.allclose(leaf, others[path], rtol=0, atol=tolerance) for path, leaf in leaves.items()
    )


def final(algorithm, clients, *, rounds=ROUNDS, seed=3):
    """Return the personal models of the known clients after the last round."""
    trace = run(
        algorithm,
        Reference(),
        clients,
        rounds=rounds,
        seed=seed,
        evaluate_every=0,
        personalized_every=0,
    )
    return {client: trace.reports[-1].personal[client] for client in clients.roster.known}


def torch_rounds(clients, training, *, seed=3):
    """Train a module on the only client of a federation, round after round with a new optimizer."""
    params = clients.common_task.model.init(new_key(seed).common("model"))
    positions = clients.splits[0].train
    x = clients.x[positions]
    y = clients.y[positions]
    for round in range(1, ROUNDS + 1):
        words = SharedInputs(x, y, UNSCALED, torch.tensor(seed), torch.tensor(round), ())
        key = client_key(
            words, client_inputs(0, clients.splits[0], clients.info(0), (), ()), "train"
        )
        module = module_of(params)
        fit(module, x, y, planned(len(x), key, training), training)
        params = params_of(module)
    return params


def one_client(size=14):
    return make_federation(perceptron(), (size,), ())


@pytest.mark.parametrize("name", ["fedavg", "local"])
@pytest.mark.parametrize("training", [PLAIN, TRAINING], ids=["plain", "full"])
def test_one_client_is_plain_sgd(name, training):
    alone = one_client()
    personal = final(replace(build(name), training=training), alone)[0]
    assert close(personal, torch_rounds(alone, training))


def test_fedavg_ft_without_epochs_is_fedavg():
    tuned = run(build("fedavg_ft", finetune_epochs=0), Reference(), small_federation("mlp"))
    plain = oracle("fedavg", "mlp")
    for client in small_federation("mlp").roster.known:
        assert_same_bits(
            tuned.reports[-1].personal[client].model, plain.reports[-1].personal[client]
        )
    for point in ("global", "local", "personalized"):
        for one, two in zip(scores_of(tuned, point), scores_of(plain, point), strict=True):
            assert_same_bits(one, two)


def test_fedavg_ft_of_the_head_leaves_the_body_as_it_is():
    clients = small_federation("mlp")
    tuned = final(build("fedavg_ft", finetune="head", finetune_epochs=2), clients)
    untuned = final(build("fedavg_ft", finetune="head", finetune_epochs=0), clients)
    for client in clients.roster.known:
        model = tuned[client].model
        other = untuned[client].model
        assert_same_bits(body_of(model), body_of(other))
        moved = not torch.equal(model["head.weight"], other["head.weight"])
        assert moved == (clients.info(client).num_train > 0)


def body_of(model):
    return {name: value for name, value in model.items() if name.startswith("hidden")}


def test_exemptions_have_a_reason():
    for (algorithm, _), exemption in EXEMPTIONS.items():
        assert algorithm in ALGORITHMS and exemption
