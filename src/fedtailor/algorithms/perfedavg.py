"""Per-FedAvg: a global model from which one gradient step leads to every client's own (model-agnostic meta-learning).

Fallah, Mokhtari, Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS, Algorithm 1. The objective of a client is ``F_i(w) = f_i(w - alpha grad f_i(w))``, its
loss after adaptation. A local meta-step uses separate batches D, D', D'':

    u = w - alpha grad f_i(w; D),   g = grad f_i(u; D'),
    first order:   w <- w - beta g,
    Hessian-free:  w <- w - beta (g - alpha [grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')] / (2 delta)),

where the bracket stands for the product of the Hessian with g. The server takes the plain mean of the clients' w. A
client, known or new, adapts the final w to its training examples by steps of size alpha, and predicts with the result.
The point ``local`` shows a client's own w right after its meta-steps, which is not adapted.

Messages: down ``model`` (w); up ``model`` (w of the client; all weigh the same). The adapted copy is never sent.

Deviations:
* A local epoch is one pass by meta-steps; ``training.steps`` are meta-steps. Batches of an epoch are disjoint; where
  they run out the step goes on into the next, so that small clients train too (in popular code they never do). The
  metric ``steps`` counts batches; the Hessian-free variant takes two gradients on every third.
* All steps are plain SGD, as in the paper, whatever the optimizer of ``[training]``.
* Adaptation takes an epoch over the training examples, which Zhu et al. 2023 (pFedVEM) found better than the paper's
  single step: that is ``adapt_steps`` = 1. (Code in early comparisons adapts to test examples.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, TRAINED, Batch, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss, model_gradient
from fedtailor.training.phase import StepOutput
from fedtailor.training.tuning import FineTuned, in_words, untuned

Server = dict[str, Params]


class Progress(NamedTuple):
    """What meta-steps change: the model w, and the sum of the losses of its adapted copies."""

    model: Params
    loss_sum: Tensor


def meta_step(
    task: Task, now: Progress, context: tuple[()], batches: Sequence[Batch], key: Key, *, method: PerFedAvg
) -> StepOutput:
    """Move the model against the gradient of its loss after adaptation; Hessian-free with a third batch."""
    slope, _, seen = model_gradient(task, now.model, batches[0], key.fold("inner"))
    slope, loss, seen = model_gradient(task, _moved(seen, slope, -method.inner_lr), batches[1], key.fold("outer"))
    start = {**seen, **task.pick(now.model, *TRAINED)}  # with the buffers of both passes
    if len(batches) == 3:
        same = key.fold("hessian")  # one dropout for both gradients
        ends = [_moved(start, slope, sign * method.difference) for sign in (1, -1)]
        ahead, behind = (model_gradient(task, end, batches[2], same)[0] for end in ends)
        slope = _moved(slope, _moved(ahead, behind, -1), -method.inner_lr / (2 * method.difference))
    return StepOutput(Progress(_moved(start, slope, -method.training.lr), now.loss_sum + loss))


def _moved(params: Params, direction: Params, distance: float) -> Params:
    """Return ``params + distance * direction``; what the direction does not name stays."""
    return {**params, **{name: params[name] + distance * value for name, value in direction.items()}}


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm[Server, tuple[()], FineTuned]):
    """A global model made to be adapted; the outer learning rate (beta) is ``training.lr``."""

    variant: Literal["first_order", "hessian_free"] = "hessian_free"
    """How the second derivative is treated: left out, or by a difference of gradients."""
    inner_lr: Annotated[float, Range(gt=0)] = 0.01
    """Learning rate of the inner step and of adaptation (alpha)."""
    difference: Annotated[float, Range(gt=0)] = 1e-3
    """Distance of the two gradients of the Hessian-free variant, in units of g (delta)."""
    adapt_epochs: Annotated[int, Range(ge=0)] = 1
    """Epochs of adaptation."""
    adapt_steps: Annotated[int, Range(ge=0)] = 0
    """Steps of adaptation in place of epochs, 1 in the paper; 0: use epochs."""

    @property
    def adaptation(self) -> str:
        """Steps of size alpha on the client's training data."""
        return in_words(self.adapt_steps, "all", "step") if self.adapt_steps else in_words(self.adapt_epochs, "all")

    def warnings(self, task: Task) -> list[str]:
        """Name what the training section asks for in vain, and a model that is not adapted."""
        idle = [] if self.adapt_epochs or self.adapt_steps else ["without adaptation, the global model predicts."]
        return [*self.training.not_used("optimizer", "momentum", "weight_decay", "clip_norm"), *idle]

    def messages(self, task: Task) -> Messages:
        """Declare the model."""
        return {"model": Field(kind="model", shapes=task.shapes(*ALL), weight="equal")}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization."""
        return {"model": task.model.init(key.common("model"))}

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Take meta-steps from the received model."""
        batches, step = 3 if self.variant == "hessian_free" else 2, partial(meta_step, method=self)
        start = Progress(download.shared["model"], torch.zeros(()))
        trained = train(
            task, None, start, data=data.train, key=key, training=self.training, step=step, batches_per_step=batches
        )
        model, loss_sum = trained.params
        metrics = {"steps": trained.steps * batches, "loss": loss_sum / trained.steps.clamp(min=1)}
        return ClientUpdate(state, {"model": Mean(model, torch.ones(()))}, FineTuned(model, metrics["steps"]), metrics)

    def global_model(self, task: Task, server: Server) -> FineTuned:
        """Return the global model, not adapted."""
        return untuned(server["model"])

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> FineTuned:
        """Adapt a copy of the global model."""
        plain = replace(self.training.plain(), lr=self.inner_lr, epochs=self.adapt_epochs, steps=self.adapt_steps)
        start, key = download.shared["model"], key.fold("adapt")
        adapted = train(task, classification_loss, start, data=data.train, key=key, training=plain)
        return FineTuned(adapted.params, adapted.steps)
