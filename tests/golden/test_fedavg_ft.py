"""FedAvg-FT: federated averaging; a copy of the final model is tuned on the client's data and never
sent back."""

import pytest

from fedtailor.algorithms.fedavg_ft import FedAvgFT
from fedtailor.core.task import Training
from golden import harness
from golden.network import ALL, HEAD, average, confusion, logits, sgd

SIZES = [len(labels) for labels in harness.LABELS]
TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
DROPPING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, epochs=1, batch_size=4, drop_last=True)


@pytest.mark.parametrize("training", [TRAINING, DROPPING])
@pytest.mark.parametrize(("finetune", "names"), [("all", ALL), ("head", HEAD)])
def test_two_rounds(recorder, training, finetune, names):
    federation = harness.make_federation()
    algorithm = FedAvgFT(training=training, finetune=finetune, finetune_epochs=3)
    recorder.run(algorithm, federation)
    w = harness.initial(federation)
    for round in (1, 2):
        trained = []
        for client in (0, 1):
            visit = recorder.visit(round, "train", client)
            harness.assert_close(visit.shared.model, w)
            trained.append(
                sgd(w, *harness.examples(federation, client), visit.plans[0], training)[0]
            )
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
            scores = by_set["clients"]
            harness.assert_close(personal.model, tuned)
            assert int(diagnostics["steps"]) == len(batches)
            x, y = harness.examples(federation, client, "test")
            correct, loss = confusion(logits(tuned, x), y)
            assert scores.class_correct.tolist() == correct.tolist()
            assert abs(float(scores.loss_sum) - loss) < 1e-11


def test_a_new_client_is_tuned_from_the_final_model(recorder):
    labels = (*harness.LABELS, [0, 2, 2, 1, 0, 2])
    federation = harness.make_federation(labels, num_new=1)
    recorder.run(FedAvgFT(training=TRAINING), federation)
    assert (2, "train", 2) not in recorder.visits
    visit = recorder.visit(2, "personalize", 2)
    w = harness.arrays(recorder.visit(2, "score", 0).shared.model)
    tuned, *_ = sgd(w, *harness.examples(federation, 2), visit.plans[0], TRAINING)
    harness.assert_close(visit.output[0].model, tuned)
