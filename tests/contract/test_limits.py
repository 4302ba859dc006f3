"""Degenerate settings under which one algorithm must equal another, or plain PyTorch."""

from dataclasses import replace

import pytest
import torch

from contract.runs import assert_same_bits, run, scores_of
from contract.subjects import ALGORITHMS, EXEMPTIONS, TRAINING, build, oracle, world
from fedtailor.core import tree
from fedtailor.core.federation import UNSCALED
from fedtailor.core.programs import Common, client_key, make_row
from fedtailor.core.rng import new_key
from fedtailor.core.task import Training
from fedtailor.engines.reference import Reference
from plain_torch import fit, module_of, params_of, planned
from worlds import federation, perceptron

PLAIN = Training(epochs=2, batch_size=4, lr=0.1)
ROUNDS = 3


def close(first, second, tolerance=1e-12):
    first, second = tree.paths(first), tree.paths(second)
    assert list(first) == list(second)
    return all(torch.allclose(leaf, second[path], rtol=0, atol=tolerance) for path, leaf in first.items())


def final(algorithm, world, *, rounds=ROUNDS, seed=3):
    """Return the personal models of the known clients after the last round."""
    record = run(algorithm, Reference(), world, rounds=rounds, seed=seed, evaluate_every=0, personalized_every=0)
    return {client: record.reports[-1].personal[client] for client in world.known}


def torch_rounds(world, training, trained=None, *, phase="", seed=3):
    """Train a module on the only client of a federation, round after round with a new optimizer."""
    params = world.common_task.model.init(new_key(seed).common("model"))
    x, y = (table[world.splits[0].train] for table in (world.x, world.y))
    for round in range(1, ROUNDS + 1):
        words = Common(x, y, UNSCALED, torch.tensor(seed), torch.tensor(round), ())
        key = client_key(words, make_row(world, 0, (), ()), "train")
        key = key.fold(phase) if phase else key
        module = module_of(params, trained)
        fit(module, x, y, planned(len(x), key, training), training)
        params = params_of(module)
    return params


def one_client(size=14):
    return federation(perceptron(), (size,), ())


@pytest.mark.parametrize("name", ["fedavg", "local"])
@pytest.mark.parametrize("training", [PLAIN, TRAINING], ids=["plain", "full"])
def test_one_client_is_plain_sgd(name, training):
    alone = one_client()
    personal = final(replace(build(name), training=training), alone)[0]
    assert close(personal, torch_rounds(alone, training))


def test_fedavg_ft_without_epochs_is_fedavg():
    tuned = run(build("fedavg_ft", finetune_epochs=0), Reference(), world("mlp"))
    plain = oracle("fedavg", "mlp")
    for client in world("mlp").known:
        assert_same_bits(tuned.reports[-1].personal[client].model, plain.reports[-1].personal[client])
    for point in ("global", "local", "personalized"):
        for one, two in zip(scores_of(tuned, point), scores_of(plain, point), strict=True):
            assert_same_bits(one, two)


def test_fedavg_ft_of_the_head_leaves_the_body_as_it_is():
    head, none = (final(build("fedavg_ft", finetune="head", finetune_epochs=n), world("mlp")) for n in (2, 0))
    for client, info in ((client, world("mlp").info(client)) for client in world("mlp").known):
        body, other = ({n: p for n, p in m[client].model.items() if n.startswith("hidden")} for m in (head, none))
        assert_same_bits(body, other)
        moved = not torch.equal(head[client].model["head.weight"], none[client].model["head.weight"])
        assert moved == (info.num_train > 0)


def test_fedrep_without_head_epochs_keeps_the_heads_and_trains_the_body_alone():
    """FedBABU with the same head; decay and momentum must not move what is frozen."""
    alone = one_client()
    personal = final(build("fedrep", head_epochs=0, body_epochs=2), alone)[0]
    initial = alone.common_task.model.init(new_key(3).common("model"))
    assert_same_bits(*(alone.common_task.pick(params, "head") for params in (personal, initial)))
    training = replace(TRAINING, epochs=2)
    expected = torch_rounds(alone, training, trained=("hidden.weight", "hidden.bias"), phase="body")
    assert close(personal, expected)


def test_fedrep_without_body_epochs_keeps_the_body():
    initial = world("mlp").common_task.model.init(new_key(3).common("model"))
    for personal in final(build("fedrep", body_epochs=0), world("mlp")).values():
        body = {name: personal[name] for name in personal if name.startswith("hidden")}
        assert close(body, world("mlp").common_task.pick(initial, "body"), 1e-15)


def test_scaffold_starts_as_fedavg():
    """All control variates are 0 in the first round, and equal clients weigh the same; later rounds differ."""
    equal = federation(perceptron(), (8, 8, 8), ())
    one, two = (replace(build(name), training=PLAIN) for name in ("scaffold", "fedavg"))
    assert close(final(one, equal, rounds=1)[0], final(two, equal, rounds=1)[0])
    assert not close(final(one, equal, rounds=2)[0], final(two, equal, rounds=2)[0], 1e-3)


def test_scaffold_of_one_client_is_fedavg():
    """The only client's control variate is that of the server, so there is nothing to correct."""
    alone = one_client()
    one, two = (replace(build(name), training=PLAIN) for name in ("scaffold", "fedavg"))
    assert close(final(one, alone)[0], final(two, alone)[0])


def test_scaffold_controls_sum_to_the_servers():
    """Every client takes part in every round, so c is the mean of c_i over the population."""
    record = run(replace(build("scaffold"), training=PLAIN), Reference(), federation(perceptron(), (8, 5, 9), ()))
    states = [output[0] for (round, _), output in record.of("train").items() if round == 2]
    moved = [output[1]["control"].value for output in (record.of("train")[r, c] for r in (1, 2) for c in range(3))]
    for name in states[0]:
        total = sum(state[name] for state in states)
        assert torch.allclose(total, sum(value[name] for value in moved), rtol=0, atol=1e-12)
        assert total.abs().max() > 1e-3


def test_fedpac_alone_keeps_its_own_head():
    alone = one_client()
    record = run(build("fedpac"), Reference(), alone)
    sent = record.of("train")[2, 0][1]["head"].value
    assert close(alone.common_task.pick(record.reports[-1].personal[0], "head"), sent)


def test_fedpac_heads_differ_by_client_and_reach_them():
    record = run(build("fedpac"), Reference(), world("mlp"))
    heads = [record.reports[-1].personal[client]["head.weight"] for client in (3, 4, 6)]
    assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[1], heads[2])
    sent = torch.stack([record.of("train")[2, client][1]["head"].value["head.weight"] for client in (0, 1, 2, 3, 4, 6)])
    for head in heads:  # a convex combination of what was sent
        assert (head <= sent.amax(0) + 1e-12).all() and (head >= sent.amin(0) - 1e-12).all()


def test_exemptions_name_what_there_is_and_give_a_reason():
    for (algorithm, _), reason in EXEMPTIONS.items():
        assert algorithm in ALGORITHMS and reason
