"""SCAFFOLD: a global model whose local steps are corrected by control variates.

Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML, option II. A step
follows g(y) + c - c_i; then c_i+ = c_i - c + (x - y) / (K eta) with K the steps taken. The server moves x by the plain
mean of y - x, and c by the sum of c_i+ - c_i over the population.

Messages: down ``model``, ``control``; up ``delta`` (plain mean), ``control`` (sum).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate
from fedtailor.core.local import classification_loss, predict_logits, train
from fedtailor.core.message import Field, Mean, Sum
from fedtailor.core.task import ALL, Params

TRAINED = ("body", "head", "extra")


class Server(NamedTuple):
    """The global model x, and the control variate c of its trained parameters."""

    model: Params
    control: Params


def corrected_loss(task, params, correction, batch, key):
    """Cross-entropy plus <c - c_i, y>, whose gradient is the correction."""
    output = classification_loss(task, params, (), batch, key)
    linear = sum((correction[name] * params[name]).sum() for name in correction)
    return output._replace(loss=output.loss + linear)


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm[Server, Params, Params]):
    """Always trains with plain SGD: option II measures the mean gradient by the distance."""

    @property
    def adaptation(self):
        return "none"

    def messages(self, task):
        model, control = task.shapes(*ALL), task.shapes(*TRAINED)
        return {
            "model": Field(kind="model", shapes=model, reduction="none"),
            "delta": Field(kind="model", shapes=model, weight="equal", down=False),
            "control": Field(kind="statistics", shapes=control, reduction="sum"),
        }

    def init_server(self, task, key):
        model = task.model.init(key.common("model"))
        return Server(model, tree.map(torch.zeros_like, task.pick(model, *TRAINED)))

    def init_client(self, task, info, key):
        return {name: torch.zeros(shape) for name, shape in task.shapes(*TRAINED).items()}

    def local_update(self, task, download, state, data, key):
        model, control = download.shared
        plain = replace(self.training, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0)
        correction = tree.map(torch.sub, control, state)
        trained = train(task, corrected_loss, model, context=correction, data=data.train, key=key, training=plain)
        delta = tree.map(torch.sub, trained.params, model)
        distance = plain.lr * trained.steps

        def option_two(own, shared, move):
            return torch.where(distance > 0, own - shared - move / distance, own)

        new = tree.map(option_two, state, control, task.pick(delta, *TRAINED))
        upload = {"delta": Mean(delta, torch.ones(())), "control": Sum(tree.map(torch.sub, new, state))}
        return ClientUpdate(new, upload, personal=trained.params, metrics={"steps": trained.steps})

    def aggregate(self, server, received, cohort):
        model = tree.map(torch.add, server.model, received["delta"].value)
        share = tree.map(lambda total: total / cohort.population, received["control"].value)
        return Server(model, tree.map(torch.add, server.control, share)), ()

    def global_model(self, task, server):
        return server.model

    def personalize(self, task, download, state, data, key):
        return download.shared.model

    def predict(self, task, personal, x):
        return predict_logits(task, personal, x)
