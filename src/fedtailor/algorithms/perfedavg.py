"""Per-FedAvg: a global model that one gradient step adapts to every client (meta-learning).

Fallah, Mokhtari, Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a
model-agnostic meta-learning approach", NeurIPS, Algorithm 1. The objective of a client is ``F_i(w)
= f_i(w - alpha grad f_i(w))``, its loss after adaptation. A local meta-step uses separate batches
D, D', D'':

    u = w - alpha grad f_i(w; D)                                        ``adapted``
    g = grad f_i(u; D')                                                 ``slope``
    first order:   w <- w - beta g
    Hessian-free:  w <- w - beta (g - alpha h),   with the product of the Hessian with g as
                   h = [grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')] / (2 delta)

where alpha is ``inner_lr``, beta ``training.lr`` and delta ``difference``. The server takes the
plain mean of the clients' w. A client, known or new, adapts the final w to its training examples by
steps of size alpha, and predicts with the result. The point ``local`` shows a client's w right
after its meta-steps, not adapted.

Messages: down ``model`` (w); up ``model`` (w of the client; all weigh the same). The adapted copy
is never sent.

Deviations:
* A local epoch is one pass by meta-steps; ``training.steps`` are meta-steps. Batches of an epoch
  are disjoint. Where they run out the step continues in the next epoch, so that small clients train
  too (in popular code they never do). The metric ``steps`` counts batches; the Hessian-free variant
  takes two gradients on every third.
* All steps are plain SGD, as in the paper, for any optimizer of ``[training]``.
* Adaptation takes an epoch over the training examples, which Zhu et al. 2023 (pFedVEM) found better
  than the paper's single step; the paper's is ``adapt_steps`` = 1. (Code in early comparisons
  adapts to test examples.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses


class Progress(NamedTuple):
    """What meta-steps change: the model w, and the sum of the losses of its adapted copies."""

    model: ft.Params
    loss_sum: Tensor


def meta_step(
    task: ft.Task,
    now: Progress,
    context: ft.Params,
    batches: Sequence[ft.Batch],
    key: ft.Key,
    *,
    method: PerFedAvg,
    outer_lr: float,
) -> ft.StepOutput:
    """Move the model down its loss after adaptation; with a third batch, Hessian-free."""
    # u and g
    inner, _, seen = losses.model_gradient(task, now.model, batches[0], key.fold("inner"))
    adapted = _moved(seen, inner, -method.inner_lr)
    slope, loss, seen = losses.model_gradient(task, adapted, batches[1], key.fold("outer"))
    start = {**seen, **task.pick(now.model, *ft.TRAINED)}  # w, with the buffers of both passes

    # g - alpha h
    if len(batches) == 3:
        same = key.fold("hessian")  # one dropout for both gradients
        forward = _moved(start, slope, method.difference)
        backward = _moved(start, slope, -method.difference)
        ahead, _, _ = losses.model_gradient(task, forward, batches[2], same)
        behind, _, _ = losses.model_gradient(task, backward, batches[2], same)
        change = _moved(ahead, behind, -1)
        slope = _moved(slope, change, -method.inner_lr / (2 * method.difference))

    return ft.StepOutput(Progress(_moved(start, slope, -outer_lr), now.loss_sum + loss))


def _moved(params: ft.Params, direction: ft.Params, distance: float) -> ft.Params:
    """Return ``params + distance * direction``; what the direction does not name stays."""
    moved = {name: params[name] + distance * value for name, value in direction.items()}
    return {**params, **moved}


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(ft.Algorithm[ft.ModelState, tuple[()], ft.FineTuned]):
    """A global model made to be adapted; the outer learning rate (beta) is ``training.lr``."""

    unused_training = ("optimizer", "momentum", "weight_decay", "clip_norm")

    variant: Literal["first_order", "hessian_free"] = "hessian_free"
    """How the second derivative is treated: left out, or by a difference of gradients."""
    inner_lr: ft.PositiveFloat = 0.01
    """Learning rate of the inner step and of adaptation (alpha)."""
    difference: ft.PositiveFloat = 1e-3
    """Distance of the two gradients of the Hessian-free variant, in units of g (delta)."""
    adapt_epochs: ft.NonNegativeInt = 1
    """Epochs of adaptation."""
    adapt_steps: ft.NonNegativeInt = 0
    """Steps of adaptation in place of epochs, 1 in the paper; 0: use epochs."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Take steps of size alpha on the client's training data."""
        if self.adapt_steps:
            return [ft.FineTuning(steps=self.adapt_steps)]
        return [ft.FineTuning(epochs=self.adapt_epochs)]

    def warnings(self, task: ft.Task) -> list[str]:
        """Name a model that is not adapted, too."""
        sentences = super().warnings(task)
        if self.adapt_epochs == 0 and self.adapt_steps == 0:
            sentences.append("without adaptation, the global model predicts.")
        return sentences

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model."""
        return {"model": ft.Field(kind="model", shapes=task.shapes(*ft.ALL), weight="equal")}

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Take meta-steps from the received model."""
        # D and D', and D'' for the difference of gradients
        batches = 3 if self.variant == "hessian_free" else 2
        step = partial(meta_step, method=self, outer_lr=task.training.lr)
        start = Progress(download.shared.model, torch.zeros(()))
        trained = ft.train(
            task, None, start, data=data.train, key=key, step=step, batches_per_step=batches
        )
        result: Progress = trained.params

        # every batch counts as a step
        steps = trained.steps * batches
        personal = ft.FineTuned(result.model, steps)

        upload = {"model": ft.Mean(result.model, torch.ones(()))}
        metrics = {"steps": steps, "loss": result.loss_sum / trained.steps.clamp(min=1)}
        return ft.ClientUpdate(state, upload, personal=personal, metrics=metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.FineTuned:
        """Return the global model, not adapted."""
        return ft.untuned(server.model)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Adapt a copy of the global model."""
        # steps of size alpha by plain SGD
        plain = replace(
            task.training.plain(),
            lr=self.inner_lr,
            epochs=self.adapt_epochs,
            steps=self.adapt_steps,
        )
        model = download.shared.model
        adapted = ft.train(
            task,
            ft.classification_loss,
            model,
            data=data.train,
            key=key.fold("adapt"),
            training=plain,
        )
        return ft.FineTuned(adapted.params, adapted.steps)
