"""pFedBayes: a Gaussian over every weight of a client's model, near a global Gaussian.

Zhang, Li, Li, Guo and Shao 2022, "Personalized federated learning via variational Bayesian
inference", ICML, Algorithm 1. Client i has q_i = N(mu_i, softplus(rho_i)^2) over all weights, and a
copy of the global Gaussian p. For every batch of B examples, with K draws w_k of q_i, it takes a
step of each, in this order:

    q_i:  down -(n_i / B) (1 / K) sum_k sum_batch log p(y | x, w_k) + zeta KL(q_i || p),
          with rate eta_1, p as it is
    p:    down zeta KL(q_i || p), with rate eta_2, q_i as it is

The server takes the mean over the cohort S of the clients' p, (mu, rho) <- (1 - beta) (mu, rho) +
(beta / |S|) sum_S (mu, rho).

Messages: down and up ``mean`` (mu of p, and buffers) and ``raw`` (rho of p), of equal weight. q_i
stays at a client.

Deviations (P: paper; U: the unofficial port of github.com/AllenBeau/pFedBayes):
* Steps are Adam's, as in P's experiments; moments are reset in each round. Of ``training`` only the
  amount counts.
* The likelihood is scaled to all n_i examples, and clients weigh the same. U does otherwise, with 5
  steps of q a batch.
* U's draws have a thousandth of q's deviation (P: q's), so its training is almost without noise. A
  thousandth of ``initial_scale`` with a millionth of ``penalty`` gives the same noise and the same
  pull of the means to p.
* Means start at the common initialization (P: normal); clients, new ones too, start at p. The mean
  of q predicts, or that of p.
* P trains all clients and averages some (``federation.train`` = "all"). A client keeps its own
  buffers; means are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import gaussian_heads, optimizer, tree

Gaussian = gaussian_heads.HeadPosterior
"""Over all weights here: means (with buffers), and raw deviations. The global one, p, is the server
state."""


class ClientState(NamedTuple):
    """The client's Gaussian q, whose means hold buffers too, and 1 once it has trained."""

    own: Gaussian
    trained: Tensor


class Learner(NamedTuple):
    """What a step changes: q and p, Adam's moments of both, and the sum of the losses."""

    own: Gaussian
    copy: Gaussian
    own_moments: optimizer.AdamMoments
    copy_moments: optimizer.AdamMoments
    loss: Tensor


def alternate(
    task: ft.Task, old: Learner, count: Tensor, batch: ft.Batch, key: ft.Key, *, method: PFedBayes
) -> ft.StepOutput:
    """Take a step of q towards the data and p, then one of p towards it; ``count`` is n_i."""

    # q_i: likelihood of all n_i examples, and divergence from p
    def own_objective(own: Gaussian) -> tuple[Tensor, tuple[Tensor, ft.Params]]:
        loss, buffers = gaussian_heads.expected_loss(task, own, batch, key, method.draws)
        loss = count * loss + method.penalty * gaussian_heads.divergence_between(own, old.copy)
        return loss, (loss, buffers)

    slope, (loss, buffers) = torch.func.grad(own_objective, has_aux=True)(old.own)
    own, own_moments = optimizer.adam_step(
        old.own, slope, old.own_moments, key.step, method.personal_lr
    )
    own = own._replace(mean={**own.mean, **task.pick(old.own.mean, "buffer"), **buffers})

    # p: divergence of the new q_i from it
    def copy_objective(copy: Gaussian) -> Tensor:
        return method.penalty * gaussian_heads.divergence_between(own, copy)

    slope = torch.func.grad(copy_objective)(old.copy)
    copy, copy_moments = optimizer.adam_step(
        old.copy, slope, old.copy_moments, key.step, method.global_lr
    )

    return ft.StepOutput(Learner(own, copy, own_moments, copy_moments, old.loss + loss))


@dataclass(frozen=True, kw_only=True)
class PFedBayes(ft.Algorithm[Gaussian, ClientState, ft.Params]):
    """Personalization by variational inference around a global Gaussian over the weights."""

    unused_training = ("optimizer", "lr", "momentum", "weight_decay", "clip_norm")

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("the global Gaussian never moves.")] = 10.0
    """Weight of the divergence of a client's Gaussian from the global one (zeta)."""
    initial_scale: ft.PositiveFloat = 0.0789
    """Initial standard deviation of every weight: softplus of the paper's rho, -2.5."""
    draws: ft.PositiveInt = 1
    """Models drawn per step (K)."""
    personal_lr: ft.PositiveFloat = 0.001
    """Adam's rate for a client's Gaussian (eta_1)."""
    global_lr: Annotated[ft.NonNegativeFloat, ft.AtZero("the global Gaussian never moves.")] = 0.001
    """Adam's rate for a client's copy of the global Gaussian (eta_2)."""
    mixing: Annotated[ft.Share, ft.AtZero("the global Gaussian never moves.")] = 1.0
    """Share of the clients' mean in the new global Gaussian (beta)."""

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Train for a round."""
        return [ft.RoundOfTraining()]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare means, with buffers, and raw deviations."""
        return {
            "mean": ft.Field(kind="model", shapes=task.shapes(*ft.ALL), weight="equal"),
            "raw": ft.Field(kind="model", shapes=task.shapes(*ft.TRAINED), weight="equal"),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> Gaussian:
        """Start from the common initialization, equally uncertain everywhere."""
        mean = task.initial(key)
        rho = gaussian_heads.raw_of(self.initial_scale)
        raw = {name: torch.full_like(mean[name], rho) for name in task.names(*ft.TRAINED)}
        return Gaussian(mean, raw)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start like the server; the first download replaces it."""
        return ClientState(self.init_server(task, key), torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Gaussian],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the client's Gaussian and its copy of the global one in turn."""
        trained = self.learn(task, download.shared, _own(download, state), data, key)
        end: Learner = trained.params

        # what is averaged is the copy of p; buffers are those of q_i's passes
        one = torch.ones(())
        mean = {**end.copy.mean, **task.pick(end.own.mean, "buffer")}
        upload = {"mean": ft.Mean(mean, one), "raw": ft.Mean(end.copy.raw, one)}
        metrics = {"steps": trained.steps, "loss": end.loss / trained.steps.clamp(min=1)}
        new_state = ClientState(end.own, one)
        return ft.ClientUpdate(new_state, upload, personal=end.own.mean, metrics=metrics)

    def aggregate(
        self, server: Gaussian, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[Gaussian, tuple[()]]:
        """Mix the means of means and raw deviations into the old ones."""
        mean = received["mean"].or_else(server.mean)
        raw = received["raw"].or_else(server.raw)

        def mix(old: Tensor, mean: Tensor) -> Tensor:
            return (1 - self.mixing) * old + self.mixing * mean

        return tree.map(mix, server, Gaussian(mean, raw)), ()

    def global_model(self, task: ft.Task, server: Gaussian) -> ft.Params:
        """Return the mean of the global Gaussian."""
        return server.mean

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[Gaussian],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Start from the global Gaussian and train for a round, with the global Gaussian fixed."""
        shared = download.shared
        with_fixed_global = replace(self, global_lr=0.0)
        trained = with_fixed_global.learn(task, shared, shared, data, key)
        end: Learner = trained.params
        return ft.Onboarded(ClientState(end.own, torch.ones(())), trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[Gaussian],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Return the mean of the client's Gaussian."""
        return dict(_own(download, state).mean)

    def learn(
        self,
        task: ft.Task,
        shared: Gaussian,
        own: Gaussian,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Trained:
        """Train for a round; the result is a :class:`Learner`."""
        own_moments = optimizer.AdamMoments.zeros(own)
        copy_moments = optimizer.AdamMoments.zeros(shared)
        start = Learner(own, shared, own_moments, copy_moments, torch.zeros(()))
        step = partial(alternate, method=self)
        return ft.train(
            task, None, start, context=data.info.num_train, data=data.train, key=key, step=step
        )


def _own(download: ft.Download[Gaussian], state: ClientState) -> Gaussian:
    """Return a client's Gaussian: the global one if it never trained."""
    own: Gaussian = tree.where(state.trained > 0, state.own, download.shared)
    return own
