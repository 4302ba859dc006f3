"""Local: SGD on a model of the client's own, continued from round to round; nothing is sent."""

import pytest

from fedtailor.algorithms.local import Local
from fedtailor.core.schedule import Participation
from fedtailor.core.task import Training
from golden import harness
from golden.network import confusion, logits, sgd

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)
ONE = Participation(plan="fixed", count=1, full_last_round=False)


@pytest.mark.parametrize("training", [TRAINING, DROPPING])
def test_models_continue_and_momentum_starts_anew(recorder, training):
    federation = harness.make_federation()
    recorder.run(Local(training=training), federation)
    for client in (0, 1):
        w = harness.initial(federation)
        for round in (1, 2):
            x, y = harness.examples(federation, client)
            visit = recorder.visit(round, "train", client)
            (batches,) = visit.plans
            harness.assert_epochs(
                batches, len(y), training.batch_size, training.epochs, drop_last=training.drop_last
            )
            w, *_ = sgd(w, x, y, batches, training)
            personal, _, by_set = recorder.visit(round, "personalize", client).output
            scores = by_set["clients"]
            harness.assert_close(personal, w)
            x, y = harness.examples(federation, client, "test")
            correct, loss = confusion(logits(w, x), y)
            assert scores.class_correct.tolist() == correct.tolist()
            assert abs(float(scores.loss_sum) - loss) < 1e-11


@pytest.mark.parametrize("train", ["auto", "cohort"])
def test_who_trains(recorder, train):
    """By itself everybody trains in every round; in pFedFDA's experiments, those drawn."""
    federation = harness.make_federation()
    recorder.run(Local(training=TRAINING), federation, rounds=3, participation=ONE, train=train)
    drawn = {(report.round, client) for report in recorder.reports for client in report.cohort}
    trained = {(round, client) for round, program, client in recorder.visits if program == "train"}
    assert trained == (
        drawn
        if train == "cohort"
        else {(round, client) for round in (1, 2, 3) for client in (0, 1)}
    )
    for client in (0, 1):
        w = harness.initial(federation)
        for round in sorted(round for round, who in trained if who == client):
            visit = recorder.visit(round, "train", client)
            w, *_ = sgd(w, *harness.examples(federation, client), visit.plans[0], TRAINING)
        harness.assert_close(recorder.visit(3, "personalize", client).output[0], w)


def test_nothing_is_sent(recorder):
    recorder.run(Local(training=TRAINING), harness.make_federation())
    assert [(report.bytes_up, report.bytes_down) for report in recorder.reports] == [(0, 0), (0, 0)]
    assert all(
        visit.output[1] == {} for (_, name, _), visit in recorder.visits.items() if name == "train"
    )
