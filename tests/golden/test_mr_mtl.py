"""MR-MTL against Liu et al. 2022: steps down CE(w_i) + (lambda / 2) |w_i - wbar|^2, and wbar is the
mean."""

import pytest

from fedtailor.algorithms.mr_mtl import MRMTL
from fedtailor.core.schedule import Participation
from fedtailor.core.task import Training
from golden import harness
from golden.network import average
from golden.test_ditto import held

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
PLAIN = Training(lr=0.2, epochs=1, batch_size=4)
ONE = Participation(plan="fixed", count=1, full_last_round=False)


@pytest.mark.parametrize("training", [TRAINING, PLAIN], ids=["momentum", "plain"])
def test_three_rounds(recorder, training):
    federation = harness.make_federation()
    recorder.run(MRMTL(training=training, penalty=0.7), federation, rounds=3)
    mean = harness.initial(federation)
    models = [mean, mean]
    for round in (1, 2, 3):
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, mean)
            (batches,) = visit.plans
            x, y = harness.examples(federation, client)
            models[client] = held(models[client], mean, x, y, batches, training, 0.7)
            harness.assert_close(visit.output[0].model, models[client])

        mean = average(models, (1, 1))
        for client in (0, 1):
            personal = recorder.visit(round, "personalize", client).output[0]
            harness.assert_close(personal, models[client])
            harness.assert_close(recorder.visit(round, "score", client).shared, mean)


def test_a_client_that_never_took_part_predicts_with_the_mean(recorder):
    federation = harness.make_federation()
    recorder.run(MRMTL(training=PLAIN), federation, rounds=1, participation=ONE)
    (report,) = recorder.reports
    (absent,) = {0, 1} - set(report.cohort)
    mean = recorder.visit(1, "score", absent).shared
    personal = recorder.visit(1, "personalize", absent).output[0]
    harness.assert_close(personal, harness.arrays(mean))
