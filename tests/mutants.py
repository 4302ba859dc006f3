"""Algorithms that are wrong in one way each, and what `check_algorithm` must say about them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from fedtailor import toolkit as ft
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.local import Local
from fedtailor.toolkit import tree


def shifted(update, number):
    """Return an update whose uploaded bias of the head is larger by a number."""
    model, weight = update.upload["model"]
    name = list(model)[-1]
    return update._replace(upload={"model": ft.Mean({**model, name: model[name] + number}, weight)})


class Changed(FedAvg):
    """FedAvg with something done to each client's update."""

    def local_update(self, task, download, state, data, key):
        return self.change(
            super().local_update(task, download, state, data, key), task, download, data, key
        )


class Closure(FedAvg):
    def local_update(self, task, download, state, data, key):
        center = download.shared.model["head.bias"]

        def loss(task, params, context, batch, key):
            output = ft.classification_loss(task, params, context, batch, key)
            return output._replace(loss=output.loss + (params["head.bias"] - center).square().sum())

        model = download.shared.model
        trained = ft.train(task, loss, model, data=data.train, key=key)  # the line
        return ft.ClientUpdate(state, {"model": ft.Mean(trained.params, data.info.num_train)})


class InPlace(Changed):
    def change(self, update, task, download, data, key):
        download.shared.model[task.names("head")[-1]].add_(0.5)
        return update


class InPlaceAtServer(FedAvg):
    def aggregate(self, server, received, cohort):
        for name, mean in received["model"].value.items():
            server.model[name].copy_(mean)
        return server, ()


class InPlaceAtBroadcast(FedAvg):
    def broadcast(self, server, cohort):
        next(iter(server.model.values())).mul_(0.9)
        return server


class GlobalRandom(FedAvg):
    def aggregate(self, server, received, cohort):
        noise = tree.map(
            lambda leaf: leaf + 0.001 * torch.randn(leaf.shape), received["model"].value
        )
        return ft.ModelState(noise), ()


class Undeclared(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(
            upload={**update.upload, "extra": ft.Mean(torch.zeros(3), data.info.num_train)}
        )


class WrongShape(Changed):
    def change(self, update, task, download, data, key):
        model, weight = update.upload["model"]
        return update._replace(
            upload={"model": ft.Mean({**model, "head.bias": model["head.bias"][:, None]}, weight)}
        )


class WrongWeight(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(
            upload={"model": ft.Mean(update.upload["model"].value, torch.ones(()))}
        )


class StateAppears(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(state={"rounds": torch.ones(())})


class Counted(NamedTuple):
    model: dict
    rounds: torch.Tensor


def _hidden_type():
    class Hidden(NamedTuple):
        model: dict

    return Hidden


Hidden = _hidden_type()


class StateOfHiddenType(FedAvg):
    def init_server(self, task, key):
        return Hidden(task.initial(key))

    def aggregate(self, server, received, cohort):
        return Hidden(received["model"].value), ()

    def broadcast(self, server, cohort):
        return ft.ModelState(server.model)


class ServerTypeChanges(FedAvg):
    def init_server(self, task, key):
        return Counted(task.initial(key), torch.zeros(()))

    def aggregate(self, server, received, cohort):
        return Counted(received["model"].value, torch.tensor(cohort.round)), ()

    def broadcast(self, server, cohort):
        return ft.ModelState(server.model)


class Item(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, 0.01 * update.metrics["loss"].item())  # the line


class Branch(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, 0.01) if data.info.num_train > 3 else update  # the line


def indexing_loss(task, params, context, batch, key):
    present = batch.weight > 0
    z, buffers = task.model.features(params, batch.x, weight=batch.weight, key=key, training=True)
    logits = task.model.head(params, z)
    loss = F.cross_entropy(logits[present], batch.y[present])  # the line
    return ft.LossOutput(loss, buffers)


def unweighted_loss(task, params, context, batch, key):
    z, buffers = task.model.features(params, batch.x, weight=batch.weight, key=key, training=True)
    return ft.LossOutput(F.cross_entropy(task.model.head(params, z), batch.y), buffers)


class OtherLoss(FedAvg):
    def local_update(self, task, download, state, data, key):
        loss = partial(self.loss)
        model = download.shared.model
        trained = ft.train(task, loss, model, data=data.train, key=key, training=self.training)
        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        return ft.ClientUpdate(state, upload, trained.params, {"steps": trained.steps})


class Indexing(OtherLoss):
    loss = staticmethod(indexing_loss)


class Unweighted(OtherLoss):
    loss = staticmethod(unweighted_loss)


class CountsRows(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, 0.01 * len(data.train.positions))


class CountsTable(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, 0.01 * len(data.train.x))


class CountsValidation(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, 0.01 * len(data.val.positions))


class EmptyIsNaN(FedAvg):
    def personalize(self, task, download, state, data, key):
        share = data.info.class_counts / data.info.num_train
        model = download.shared.model
        head = task.names("head")[-1]
        return {**model, head: model[head] + share}


class FailsIfEmpty(FedAvg):
    def personalize(self, task, download, state, data, key):
        first = data.train.labels()[0]  # the line
        model = download.shared.model
        return {**model, "head.bias": model["head.bias"] + 0.0 * first}


class WholeTable(FedAvg):
    def personalize(self, task, download, state, data, key):
        counts = F.one_hot(data.train.y, task.num_classes).sum(0)
        model = download.shared.model
        head = task.names("head")[-1]
        return {**model, head: model[head] + 0.01 * counts}


class OthersData(Changed):
    def change(self, update, task, download, data, key):
        return shifted(update, data.train.x.mean())


class NoSteps(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(metrics={})


class HalfSteps(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(metrics={"steps": update.metrics["steps"] + 0.5})


class PlainMetric(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(metrics={"steps": 3})


class Counter(Changed):
    calls: ClassVar[list] = []

    def change(self, update, task, download, data, key):
        self.calls.append(None)
        return shifted(update, 0.01 * len(self.calls))


class Remembers(Changed):
    def change(self, update, task, download, data, key):
        self.last = 1  # Python allows it: this class is no frozen dataclass itself
        return update


class RemembersTensors(Changed):
    def change(self, update, task, download, data, key):
        self.last = update
        return update


@dataclass(frozen=True, kw_only=True)
class Assigns(Changed):
    def change(self, update, task, download, data, key):
        self.last = update  # the line
        return update


class Stands(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(
            upload={"model": ft.Mean(download.shared.model, data.info.num_train)}
        )


class Untrained(Local):
    def onboard(self, task, download, info, data, key):
        return ft.Onboarded(self.init_client(task, info, key), 0)


class OtherOnboarding(Local):
    def onboard(self, task, download, info, data, key):
        return self.init_client(task, info, key)


class UndeclaredDownload(FedAvg):
    def init_server(self, task, key):
        return Counted(task.initial(key), torch.zeros(()))


class NotSentDown(FedAvg):
    def messages(self, task):
        return {
            **super().messages(task),
            "rounds": ft.Field(kind="counts", shapes=(), reduction="none"),
        }


class SameSeed(FedAvg):
    def init_server(self, task, key):
        return ft.ModelState(task.initial(ft.new_key(0)))

    def local_update(self, task, download, state, data, key):
        key = key._replace(seed=torch.zeros_like(key.seed))
        return super().local_update(task, download, state, data, key)


class NoBuffers(FedAvg):
    def messages(self, task):
        return {"model": ft.Field(kind="model", shapes=task.shapes("body", "head"))}

    def init_server(self, task, key):
        return ft.ModelState(task.initial(key, "body", "head"))

    def local_update(self, task, download, state, data, key):
        model = self.personalize(task, download, state, data, key)
        trained = ft.train(
            task, ft.classification_loss, model, data=data.train, key=key, training=self.training
        )
        upload = {"model": ft.Mean(task.pick(trained.params, "body", "head"), data.info.num_train)}
        return ft.ClientUpdate(state, upload, metrics={"steps": trained.steps})

    def global_model(self, task, server):
        return None

    def personalize(self, task, download, state, data, key):
        return {**task.pick(task.model.init(ft.new_key(0)), "buffer"), **download.shared.model}


class RowsForNobody(FedAvg):
    def messages(self, task):
        return {
            **super().messages(task),
            "own": ft.Field(kind="statistics", shapes=(2,), reduction="none"),
        }

    def init_per_client(self, task, info, key):
        return torch.zeros(2)

    def aggregate(self, server, received, cohort):
        return ft.ModelState(received["model"].value), torch.zeros(len(cohort.ids) + 1, 2)


@dataclass(frozen=True, kw_only=True)
class BadDefault(FedAvg):
    share: Annotated[float, ft.Range(ge=0, le=1)] = 2.0


class Undecorated(FedAvg):
    share: float = 0.5


class Unfinished(ft.Algorithm):
    def messages(self, task):
        return {}


class EqualWeights(FedAvg):
    def messages(self, task):
        return {"model": replace(super().messages(task)["model"], weight="equal")}


class FailsAtOnce(FedAvg):
    def messages(self, task):
        return {"model": task.weights}  # the line


class OtherArguments(FedAvg):
    def aggregate(self, task, server, received):
        return server, ()


class Misspelled(FedAvg):
    def onbaord(self, task, download, info, data, key):
        return ft.Onboarded((), 0)


class NotAnnotated(FedAvg):
    mu = 0.1


class NoProperty(FedAvg):
    def adaptation(self):
        return []


class TunesInSecret(FedAvg):
    def personalize(self, task, download, state, data, key):
        model = download.shared.model
        return ft.train(
            task, ft.classification_loss, model, data=data.train, key=key, training=self.training
        ).params


class OnboardsInSecret(FedAvg):
    def onboard(self, task, download, info, data, key):
        return ft.Onboarded((), 3)


class OnboardsWithFewerSteps(Local):
    def onboard(self, task, download, info, data, key):
        onboarded = super().onboard(task, download, info, data, key)
        return onboarded._replace(steps=onboarded.steps - 1)


class FewerSteps(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(metrics={"steps": update.metrics["steps"] - 1})


class SinglePrecision(FedAvg):
    def personalize(self, task, download, state, data, key):
        return tree.map(torch.Tensor.float, download.shared.model)


class SinglePrecisionSent(Changed):
    def change(self, update, task, download, data, key):
        model, weight = update.upload["model"]
        return update._replace(
            upload={"model": ft.Mean(tree.map(torch.Tensor.half, model), weight)}
        )


class Bare(Changed):
    def change(self, update, task, download, data, key):
        return update._replace(upload={"model": update.upload["model"].value})


class TorchRandom(Changed):
    def change(self, update, task, download, data, key):
        torch.rand(2)  # the line
        return update


MUTANTS = {
    Closure: [
        "Closure does not run",
        "closure variable 'center'",
        "mutants.py, line LINE, local_update",
    ],
    InPlace: ["local_update changes its input in place: shared/model/head.bias differs by 3"],
    InPlaceAtServer: ["aggregate changes its input in place", "server/model/"],
    InPlaceAtBroadcast: ["broadcast changes its input in place", "server/model/"],
    GlobalRandom: ["Random numbers do not come from the key", "key.fold"],
    Undeclared: [
        "does not run",
        "the upload has fields ['extra', 'model'] instead of ['model']. Send "
        'upload={"model": Mean(',
    ],
    WrongShape: ["field 'model': 'head.bias' has shape (3, 1) instead of (3,)"],
    WrongWeight: [
        "client 1 (2 training examples)",
        "'model' is sent with weight 1",
        'weight="num_train", which is 2',
    ],
    StateAppears: ["The client state changes its structure", "'rounds'", "init_client"],
    StateOfHiddenType: [
        "The server state cannot be stored",
        "define it at the top level of the method's module",
    ],
    ServerTypeChanges: [
        "The server state changes its structure",
        "'rounds' is of shape () and type torch.float64 from init_server, but of shape () and type "
        "torch.int64 from",
    ],
    Item: ["several clients at once", ".item()", "mutants.py, line LINE, change"],
    Branch: [
        "several clients at once",
        "data-dependent control flow",
        "mutants.py, line LINE, change",
        "torch.where",
    ],
    Indexing: [
        "several clients at once",
        "mutants.py, line LINE, indexing_loss",
        "boolean indexing",
    ],
    Unweighted: ["stacked in blocks of 3", "round 1, train, client", "weighted_mean"],
    CountsRows: ["Examples of weight 0 in a client's list", "data.info"],
    CountsTable: ["rows of others in `data.train.x`", "data.info"],
    CountsValidation: ["Examples of weight 0 in a client's list", "data.val.weight"],
    EmptyIsNaN: [
        "client 5 (0 training examples)",
        "personalize",
        "not finite in the personal model",
        "clamp(min=1)",
    ],
    FailsIfEmpty: [
        "client 5 (0 training examples)",
        "IndexError",
        "mutants.py, line LINE, personalize",
    ],
    WholeTable: ["personalize", "depends on test examples", "data.train.positions"],
    OthersData: ["local_update", "depends on the examples of client 6"],
    NoSteps: ["reports no metric 'steps'", "trained.steps"],
    HalfSteps: ["metric 'steps' is 2.5, which is not a number of steps"],
    PlainMetric: ["metric 'steps' is not a single number"],
    Counter: ["Two runs with the same seed differ", "ClientUpdate.state"],
    Remembers: ["The attribute 'last' of the algorithm changed"],
    RemembersTensors: ["The attribute 'last' of the algorithm changed"],
    Assigns: ["does not run", "cannot assign to field 'last'", "mutants.py, line LINE, change"],
    Stands: ["Personal models learn nothing", "aggregate"],
    Untrained: ["Models of clients that never took part in training are not trained", "onboard"],
    OtherOnboarding: ["Round 1, client 7", "onboard must return Onboarded(state, steps), got dict"],
    UndeclaredDownload: [
        "broadcast returns 'rounds' of shape ()",
        "messages declares no such field",
    ],
    NotSentDown: [
        "messages declares that clients receive a value of shape ()",
        "broadcast does not return one",
    ],
    SameSeed: ["With another seed, client 0 (1 training example) gets the same personal model"],
    NoBuffers: ["Field 'model' of messages", "statistics of batch normalization", "running_mean"],
    RowsForNobody: [
        "What a client receives as download.per_client changes its structure: '.' is of shape (2,)",
        "but of shape (7, 2)",
    ],
    BadDefault: ["BadDefault cannot be built: BadDefault.share must be >= 0 and <= 1, got 2.0."],
    Undecorated: ["lacks the decorator @dataclass(frozen=True, kw_only=True)"],
    Unfinished: ["lacks local_update, personalize"],
    EqualWeights: [
        "client 1 (2 training examples)",
        "must be 1, as declared. Send Mean(value, torch.ones(()))",
    ],
    FailsAtOnce: ["FailsAtOnce does not run: AttributeError", "mutants.py, line LINE, messages"],
    OtherArguments: [
        "aggregate takes (self, task, server, received) but must take (self, server, received, "
        "cohort)"
    ],
    Misspelled: ["onbaord is never called; perhaps you meant 'onboard'."],
    NotAnnotated: ["annotate it, mu: float = 0.1"],
    NoProperty: ["write @property above it"],
    TunesInSecret: ["personalize trains on a client's data", "adaptation says none"],
    OnboardsInSecret: ["onboard trains on a client's data (3 steps)", "onboarding says none"],
    OnboardsWithFewerSteps: [
        "onboard returns",
        "but train took",
        "Return Onboarded(state, trained.steps)",
    ],
    FewerSteps: ["reports 1 as metric 'steps', but train took 2 steps"],
    SinglePrecision: [
        "a model in which 'hidden.weight' is of type torch.float32",
        "runs in float64",
    ],
    SinglePrecisionSent: [
        "an upload in which 'model/hidden.weight' is of type torch.float16",
        "runs in float64",
    ],
    Bare: ["sent as dict, declared as mean. Send Mean(value, data.info.num_train)"],
    TorchRandom: [
        "randomness",
        "mutants.py, line LINE, change",
        "`fedtailor.toolkit` with the key",
    ],
}
"""Mutant -> words of one sentence; LINE stands for the line that its class or loss marks with ``#
the line``."""
