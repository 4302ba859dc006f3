"""FedBABU against Oh et al. 2022: the body trained under a fixed random head; every client tunes a
copy at the end."""

import pytest
import torch

from federations import make_federation, module
from fedtailor.algorithms.fedbabu import FedBABU
from fedtailor.algorithms.fedper import FedPer
from fedtailor.core.errors import ConfigError
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, BODY, HEAD, average, confusion, logits, sgd

SIZES = [len(labels) for labels in harness.LABELS]
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)
NEWCOMER = [0, 2, 2, 1, 0, 2]


@pytest.mark.parametrize("training", [TRAINING, DROPPING])
@pytest.mark.parametrize(("finetune", "names"), [("all", ALL), ("head", HEAD)])
def test_two_rounds(recorder, training, finetune, names):
    federation = harness.make_federation()
    recorder.run(FedBABU(training=training, finetune=finetune, finetune_epochs=3), federation)
    w = harness.initial(federation)
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            assert visit.shared._fields == ("body",)
            harness.assert_close(visit.shared.body, harness.part(w, BODY))
            x, y = harness.examples(federation, client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
            )
            trained.append(sgd(w, x, y, batches, training, BODY)[0])
            harness.assert_close(visit.output[1]["body"].value, harness.part(trained[-1], BODY))
            assert int(visit.output[2]["steps"]) == len(batches)
        w = average(trained, SIZES)
        for client in (0, 1):
            x, y = harness.examples(federation, client)
            visit = recorder.visit(round, "personalize", client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, 3, drop_last=training.drop_last
            )
            tuned, *_ = sgd(w, x, y, batches, training, names)
            personal, diagnostics, by_set = visit.output
            harness.assert_close(personal.model, tuned)
            assert int(diagnostics["steps"]) == len(batches)
            x, y = harness.examples(federation, client, "test")
            for scores, params in (
                (by_set["clients"], tuned),
                (recorder.visit(round, "score", client).output, w),
            ):
                correct, loss = confusion(logits(params, x), y)
                assert scores.class_correct.tolist() == correct.tolist()
                assert abs(float(scores.loss_sum) - loss) < 1e-11


@pytest.mark.parametrize("num_new", [0, 1])
def test_all_have_one_head_that_nobody_trains_or_sends(recorder, num_new):
    """Pitfall: a head whose gradient is zeroed drifts under momentum and decay; here not a bit of
    it changes."""
    federation = harness.make_federation((*harness.LABELS, NEWCOMER), num_new=num_new)
    heavy = Training(lr=0.1, momentum=0.9, weight_decay=0.1, steps=100, batch_size=5)
    recorder.run(FedBABU(training=heavy), federation)
    cohort = 3 - num_new
    for client in range(cohort):
        state, upload, *_ = recorder.visit(2, "train", client).output
        scored = recorder.visit(2, "score", client).shared.model
        for name in HEAD:
            assert torch.equal(
                state[name], harness.initial_params(federation)[name]
            ) and torch.equal(scored[name], harness.initial_params(federation)[name])
        assert set(upload) == set(recorder.visit(2, "train", client).shared._fields) == {"body"}
    numbers = sum(harness.initial_params(federation)[name].numel() for name in BODY)
    for report in recorder.reports:
        assert (
            report.bytes_down == 4 * numbers * cohort
            and report.bytes_up == 4 * (numbers + 1) * cohort
        )


def test_tuning_of_the_head_leaves_the_body_with_its_buffers(recorder):
    federation = make_federation(module(), (5, 9), ())
    recorder.run(FedBABU(training=TRAINING), federation, rounds=1)
    for client in (0, 1):
        visit = recorder.visit(1, "personalize", client)
        upload = recorder.visit(1, "train", client).output[1]["body"].value
        personal = visit.output[0].model
        assert set(federation.common_task.names("buffer")) < set(upload) == set(visit.shared.body)
        assert all(torch.equal(personal[name], value) for name, value in visit.shared.body.items())
        assert not torch.equal(personal["6.weight"], harness.initial_params(federation)["6.weight"])


def test_the_default_is_the_head_for_five_epochs_and_is_not_kept(recorder):
    federation = harness.make_federation((*harness.LABELS, NEWCOMER), num_new=1)
    recorder.run(FedBABU(training=TRAINING), federation)
    found = {(e.point, e.group): e.adaptation for e in recorder.reports[-1].evaluations}
    assert found["personalized", "known"] == found["personalized", "new"] == "5 epochs of the head"
    w = harness.arrays(recorder.visit(2, "score", 0).shared.model)
    for client in (0, 1, 2):  # the new client is treated as the others are
        visit = recorder.visit(2, "personalize", client)
        (batches,) = visit.plans
        x, y = harness.examples(federation, client)
        harness.assert_epochs(batches, len(y), TRAINING.batch_size, 5)
        harness.assert_close(visit.output[0].model, sgd(w, x, y, batches, TRAINING, HEAD)[0])


def test_without_tuning_all_predict_with_the_global_model(recorder):
    federation = harness.make_federation()
    algorithm = FedBABU(training=TRAINING, finetune_epochs=0)
    recorder.run(algorithm, federation)
    assert algorithm.warnings(federation.common_task) and not FedBABU().warnings(
        federation.common_task
    )
    scored = recorder.visit(2, "score", 0).shared.model
    for client in (0, 1):
        personal = recorder.visit(2, "personalize", client).output[0].model
        assert all(torch.equal(personal[name], scored[name]) for name in ALL)


def test_it_is_not_fedper(recorder):
    """Pitfall: the option of that name in the code of FedCR trains a head for every client."""
    federation, found = harness.make_federation(), []
    for algorithm in (FedPer(training=TRAINING), FedBABU(training=TRAINING)):
        recorder.run(algorithm, federation, rounds=1)
        found.append(recorder.visit(1, "train", 0).output[1]["body"].value)
    assert all((found[0][name] - found[1][name]).abs().max() > 1e-3 for name in BODY)


def test_a_wrong_option_is_refused():
    with pytest.raises(
        ConfigError, match=r"FedBABU\.finetune must be one of 'all', 'head', got 'body'"
    ):
        FedBABU(finetune="body")
