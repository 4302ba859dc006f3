"""pFedBayes: a Gaussian over every weight of a client's model, near a global Gaussian that follows the clients'.

Zhang, Li, Li, Guo and Shao 2022, "Personalized federated learning via variational Bayesian inference", ICML,
Algorithm 1. Client i has q_i = N(mu_i, softplus(rho_i)^2) over all weights, and a copy of the global Gaussian p. For
every batch of B examples, with K draws w_k of q_i, it takes a step of each, in this order:

    q_i:  down  -(n_i / B) (1/K) sum_k sum_batch log p(y | x, w_k) + zeta KL(q_i || p)   with rate eta_1, p as it is;
    p:    down  zeta KL(q_i || p)                                                    with rate eta_2, q_i as it is;
    server:  (mu, rho) <- (1 - beta) (mu, rho) + (beta / |S|) sum_S (mu, rho) of the clients' p.

Messages: down and up ``mean`` (mu of p, and buffers) and ``raw`` (rho of p), of equal weight. q_i stays at a client.

Deviations (P: paper; U: the unofficial port of github.com/AllenBeau/pFedBayes):
* Steps are Adam's, as in P's experiments; moments start anew each round. Of ``training`` only the amount counts.
* The likelihood is scaled to all n_i examples, and clients weigh the same; U does otherwise, with 5 steps of q a batch.
* Means start at the common initialization (P: normal), clients, new ones too, at p. The mean of q predicts, or of p.
* P trains everybody and averages some (``federation.train`` = "all"). A client keeps its own buffers; means are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, TRAINED, Batch, Params, Task
from fedtailor.statistics.gaussian_heads import HeadPosterior, divergence_between, expected_loss, raw_of
from fedtailor.training.blocks import Trained, train
from fedtailor.training.optimizer import Moments, adam_step
from fedtailor.training.phase import StepOutput


class State(NamedTuple):
    """Client state: its Gaussian q, whose means hold buffers too, and 1 once it has trained."""

    own: HeadPosterior
    trained: Tensor


class Learner(NamedTuple):
    """What a step changes: q and p, Adam's moments of both, and the sum of the losses."""

    own: HeadPosterior
    copy: HeadPosterior
    moments: tuple[Moments, Moments]
    loss: Tensor


def alternate(task: Task, old: Learner, count: Tensor, batch: Batch, key: Key, *, method: PFedBayes) -> StepOutput:
    """Take a step of q towards the data and p, then one of p towards the new q; ``count`` is n_i."""

    def objective(own: HeadPosterior) -> tuple[Tensor, tuple[Tensor, Params]]:
        loss, buffers = expected_loss(task, own, batch, key, method.draws)
        loss = count * loss + method.penalty * divergence_between(own, old.copy)
        return loss, (loss, buffers)

    slope, (loss, buffers) = torch.func.grad(objective, has_aux=True)(old.own)
    own, first = adam_step(old.own, slope, old.moments[0], key.step, method.personal_lr)
    own = own._replace(mean={**own.mean, **task.pick(old.own.mean, "buffer"), **buffers})
    slope = torch.func.grad(lambda copy: method.penalty * divergence_between(own, copy))(old.copy)
    copy, second = adam_step(old.copy, slope, old.moments[1], key.step, method.global_lr)
    return StepOutput(Learner(own, copy, (first, second), old.loss + loss))


def _own(download: Download, state: State) -> Any:
    """Return a client's Gaussian: the global one if it never trained."""
    return tree.where(state.trained > 0, state.own, download.shared)


@dataclass(frozen=True, kw_only=True)
class PFedBayes(Algorithm[HeadPosterior, State, Params]):
    """Personalization by variational inference around a global Gaussian over the weights."""

    onboarding = "a round's training of all layers"

    penalty: Annotated[float, Range(ge=0)] = 10.0
    """Weight of the divergence of a client's Gaussian from the global one (zeta)."""
    initial_scale: Annotated[float, Range(gt=0)] = 0.0789
    """Initial standard deviation of every weight: softplus of the paper's rho, -2.5."""
    draws: Annotated[int, Range(ge=1)] = 1
    """Models drawn per step (K)."""
    personal_lr: Annotated[float, Range(gt=0)] = 0.001
    """Adam's rate for a client's Gaussian (eta_1)."""
    global_lr: Annotated[float, Range(ge=0)] = 0.001
    """Adam's rate for a client's copy of the global Gaussian (eta_2)."""
    mixing: Annotated[float, Range(ge=0, le=1)] = 1.0
    """Share of the clients' mean in the new global Gaussian (beta)."""

    def warnings(self, task: Task) -> list[str]:
        """Name what keeps the global Gaussian as it is, and what the training section asks for in vain."""
        options = ("penalty", "global_lr", "mixing")
        still = [f"with {name} 0, the global Gaussian never moves." for name in options if getattr(self, name) == 0]
        return still + self.training.not_used("optimizer", "lr", "momentum", "weight_decay", "clip_norm")

    def messages(self, task: Task) -> Messages:
        """Declare means, with buffers, and raw deviations."""
        groups = {"mean": ALL, "raw": TRAINED}
        return {name: Field(kind="model", shapes=task.shapes(*of), weight="equal") for name, of in groups.items()}

    def init_server(self, task: Task, key: Key) -> HeadPosterior:
        """Start from the common initialization, equally uncertain everywhere."""
        mean, raw = task.model.init(key.common("model")), raw_of(self.initial_scale)
        return HeadPosterior(mean, {name: torch.full_like(mean[name], raw) for name in task.names(*TRAINED)})

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start like the server; the first download replaces it."""
        return State(self.init_server(task, key), torch.zeros(()))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train the client's Gaussian and its copy of the global one in turn."""
        trained = self.learn(task, download.shared, _own(download, state), data, key)
        end, one = trained.params, torch.ones(())
        mean = {**end.copy.mean, **task.pick(end.own.mean, "buffer")}
        metrics = {"steps": trained.steps, "loss": end.loss / trained.steps.clamp(min=1)}
        upload = {"mean": Mean(mean, one), "raw": Mean(end.copy.raw, one)}
        return ClientUpdate(State(end.own, one), upload, personal=end.own.mean, metrics=metrics)

    def aggregate(self, server: HeadPosterior, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Any, Any]:
        """Mix the means of means and raw deviations into the old ones."""
        new = HeadPosterior(received["mean"].or_else(server.mean), received["raw"].or_else(server.raw))
        return tree.map(lambda old, mean: (1 - self.mixing) * old + self.mixing * mean, server, new), ()

    def global_model(self, task: Task, server: HeadPosterior) -> Params:
        """Return the mean of the global Gaussian."""
        return server.mean

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Start from the global Gaussian and train for a round, while that stays as it is."""
        end = replace(self, global_lr=0.0).learn(task, download.shared, download.shared, data, key)
        return Onboarded(State(end.params.own, torch.ones(())), end.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Params:
        """Return the mean of the client's Gaussian."""
        return dict(_own(download, state).mean)

    def learn(self, task: Task, shared: HeadPosterior, own: HeadPosterior, data: ClientData, key: Key) -> Trained:
        """Train for a round; the result is a :class:`Learner`."""
        start = Learner(own, shared, (Moments.zeros(own), Moments.zeros(shared)), torch.zeros(()))
        step, count, plan = partial(alternate, method=self), data.info.num_train, self.training
        return train(task, None, start, context=count, data=data.train, key=key, training=plan, step=step)
