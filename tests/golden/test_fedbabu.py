"""FedBABU against Oh et al. 2022: the body trained under a fixed random head; every client tunes a
copy at the end."""

import pytest

from fedtailor.algorithms.fedbabu import FedBABU
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, BODY, HEAD, average, confusion, logits, sgd

SIZES = [len(labels) for labels in harness.LABELS]
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)


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
