"""pFedVEM: a shared body, and linear heads that are Gaussian perturbations of a latent global head.

Zhu, Ma and Blaschko 2023, "Confidence-aware personalized federated learning via variational
expectation maximization", CVPR. Client j keeps a diagonal Gaussian q_j over its head, with means
m_j and deviations sigma_j = softplus(r_j), and expects the head within rho_j^2 of the global head w
(D numbers). A round, in this order:

    M-step (eq. 8):   rho_j^2 = (|sigma_j|^2 + |m_j - w|^2) / D,   confidence tau_j = 1 / rho_j^2
    E-step (eq. 6):   full-batch steps on (m_j, r_j) down E_q[sum_n CE] + KL(q_j || N(w, rho_j^2))
    body:             mini-batch steps down the mean cross-entropy under heads drawn from q_j
    server (eq. 9):   w = sum_j tau_j m_j / sum_j tau_j,   theta = sum_j n_j theta_j / sum_j n_j

The body is theta, and frozen in the E-step. All clients train in every round; the cohort uploads.
The confidence is that of the M-step, from the means before the E-step, while the uploaded means are
those after it.

Messages: down and up ``head`` (w; m_j with weight tau_j: one number, larger the surer the client is
of its head and the nearer this is to w) and ``body`` (theta; weight n_j): one number more than
FedAvg. Variances never leave a client.

Deviations (P: paper, C: released code). P and C agree on the algorithm, so the presets
``reference`` and ``paper`` are the same. They differ in how they divide the data, and in what P
leaves open:
* w starts standard normal, biases too, as in C (P: unspecified). A client starts at the w that it
  receives first, with ``initial_scale`` for its deviations and rho.
* The personal model is the client's own body and m_j from before aggregation, as in C (P:
  unspecified). So ``local`` after the last round is P's PM, and ``personalize`` returns the same
  model (``evaluated_body`` = "global" takes the aggregated body); ``global`` is P's GM. A client
  that never trained gets the global model. Predictions use m_j; with ``prediction_draws`` they
  average the probabilities of drawn heads.
* C averages at least two uploads per round (P: any number): ``federation.min_clients`` = 2.
* ``confidence`` = "uncertainty" or "deviation" keeps one term of eq. 8, in the divergence as in the
  aggregation (P: "in the confidence value"). The first round has rho = ``initial_scale`` all the
  same.
* A client whose head is not finite after the E-step keeps the head from before, as in C, but at
  another time: here before the body trains, so that the body trains under that head; in C at the
  end of the round, after the body has trained under the broken one. C looks at the losses of the
  steps, which miss the last step; here the parameters decide. A client whose body is not finite
  takes the received one; C lets it pass. Metrics ``head_restored`` and ``body_restored`` tell.
* rho^2 is kept above 1e-12, and deviations above 1e-8 in logarithms.
* C's server momentum, 0 in all its configurations, is left out; ``federation.server_optimizer``
  moves body and head.
* With ``federation.train`` = "cohort" the cohort alone trains: an approximation for many clients.
* A new client (P, C: not treated) starts like any other and takes ``onboard_rounds`` M- and E-steps
  under the global body, which it trains too with ``onboard_body``; with 0 rounds it gets the global
  model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import gaussian_heads, tree

_HEAD_MOMENTUM = 0.9
_LEAST_VARIANCE = 1e-12  # of a head about the global one


class ServerState(NamedTuple):
    """Body, and latent global head."""

    body: ft.Params
    head: ft.Params


class ClientState(NamedTuple):
    """Posterior of the head, body of the last training (() if not evaluated), 1 once trained."""

    posterior: gaussian_heads.HeadPosterior
    body: ft.Params | tuple[()]
    trained: Tensor


class Personal(NamedTuple):
    """A client's model: body, Gaussian over its head, noise (draws, D) if predictions draw any."""

    body: ft.Params
    head: ft.Params
    deviation: ft.Params
    noise: Tensor | tuple[()]


class Confidence(NamedTuple):
    """The result of the M-step (eq. 8): tau, rho, and both terms of the variance; all ()."""

    confidence: Tensor
    rho: Tensor
    uncertainty: Tensor
    model_deviation: Tensor


class Round(NamedTuple):
    """The results of a client's round: its state, its body, and metrics."""

    state: ClientState
    body: ft.Params
    metrics: dict[str, Tensor]


def head_loss(
    task: ft.Task,
    posterior: gaussian_heads.HeadPosterior,
    prior: gaussian_heads.HeadPrior,
    batch: ft.Batch,
    key: ft.Key,
    *,
    draws: int,
) -> ft.LossOutput:
    """Negative evidence lower bound (eq. 6) on cached features, summed over examples."""
    deviation = posterior.deviation()
    losses = gaussian_heads.expected_losses(
        task, posterior.mean, deviation, batch.x, batch.y, key, draws
    )
    divergence = gaussian_heads.divergence(posterior.mean, deviation, prior)
    return ft.LossOutput((batch.weigh(losses) * batch.weight).sum() + divergence)


def body_loss(
    task: ft.Task,
    body: ft.Params,
    posterior: gaussian_heads.HeadPosterior,
    batch: ft.Batch,
    key: ft.Key,
    *,
    draws: int,
) -> ft.LossOutput:
    """Mean cross-entropy under heads drawn from the posterior, which stays as it is."""
    z, buffers = task.features(body, batch, key)
    deviation = posterior.deviation()
    losses = gaussian_heads.expected_losses(task, posterior.mean, deviation, z, batch.y, key, draws)
    return ft.LossOutput(ft.weighted_mean(batch.weigh(losses), batch.weight), buffers)


@dataclass(frozen=True, kw_only=True)
class PFedVEM(ft.Algorithm[ServerState, ClientState, Personal]):
    """Confidence-aware personalization by variational expectation maximization."""

    presets = {"reference": {}, "paper": {}}
    trains = "all"

    head_steps: ft.NonNegativeInt = 10
    """Full-batch steps on the posterior of the head per round (R)."""
    head_lr: ft.PositiveFloat = 0.001
    """Learning rate of these steps (eta); each sums over all examples, and their momentum is
    0.9."""
    draws: ft.PositiveInt = 5
    """Heads drawn per step (K)."""
    initial_scale: ft.PositiveFloat = 1.0
    """Deviation of a client's posterior and prior before its first round."""
    confidence: Literal["both", "uncertainty", "deviation"] = "both"
    """Terms of the confidence: variance of the posterior, its distance from the global head, or
    both."""
    evaluated_body: Literal["local", "global"] = "local"
    """The body of a client's personal model: that of its own last training, or the server's."""
    prediction_draws: ft.NonNegativeInt = 0
    """Heads whose probabilities are averaged for a prediction; 0: the mean head predicts."""
    onboard_rounds: ft.NonNegativeInt = 1
    """Rounds of a new client on its own data."""
    onboard_body: bool = False
    """Whether a new client trains the body too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.onboard_body and self.evaluated_body == "global":
            raise ft.ConfigError(
                "algorithm.onboard_body trains a body that algorithm.evaluated_body 'global' does "
                "not use.",
                key="algorithm.onboard_body",
                allowed=[False],
                got=True,
            )

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Take rounds under the global body, or of the body too."""
        return [ft.FineTuning("all" if self.onboard_body else "head", rounds=self.onboard_rounds)]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare body and head."""
        return {
            "body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY)),
            "head": ft.Field(kind="model", shapes=task.shapes("head"), weight="own"),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body and a standard normal head."""
        model = task.initial(key)
        like = task.pick(model, "head")

        # one standard normal head
        noise = ft.normal(key.common("head"), (1, gaussian_heads.head_size(like)))
        zeros = tree.map(torch.zeros_like, like)
        ones = tree.map(torch.ones_like, like)
        drawn = gaussian_heads.draw_heads(zeros, ones, noise)
        head = {name: leaf[0] for name, leaf in drawn.items()}
        return ServerState(task.pick(model, *ft.BODY), head)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start with the initial deviations; the means come with the first download."""
        model = task.initial(key)
        mean = task.pick(model, "head")
        r = gaussian_heads.raw_of(self.initial_scale)
        raw = {name: torch.full_like(leaf, r) for name, leaf in mean.items()}
        posterior = gaussian_heads.HeadPosterior(mean, raw)

        # a body of its own only where that is evaluated
        body = task.pick(model, *ft.BODY) if self.evaluated_body == "local" else ()
        return ClientState(posterior, body, torch.zeros(()))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Update confidence, posterior and body, in this order."""
        started = _started(download.shared, state)
        done = self._round(task, download.shared, started, data, key, train_body=True)
        posterior = done.state.posterior
        personal = self._personal(done.body, posterior, key)

        upload = {
            "body": ft.Mean(done.body, data.info.num_train),
            "head": ft.Mean(posterior.mean, done.metrics["confidence"]),
        }
        return ft.ClientUpdate(done.state, upload, personal=personal, metrics=done.metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> Personal:
        """Return the body with the global head, as if that were certain."""
        zeros = tree.map(torch.zeros_like, server.head)
        noise: Tensor | tuple[()] = ()
        if self.prediction_draws:
            noise = torch.zeros(self.prediction_draws, gaussian_heads.head_size(zeros))

        return Personal(server.body, server.head, zeros, noise)

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Take rounds on the client's own data, under the global body and head."""
        shared = download.shared
        state = _started(shared, self.init_client(task, info, key))
        steps = torch.zeros((), dtype=torch.int64)
        for number in range(self.onboard_rounds):
            done = self._round(
                task, shared, state, data, key.fold(number), train_body=self.onboard_body
            )

            # the next round continues from the posterior, and perhaps the body, of this one
            state = done.state
            shared = shared._replace(body=done.body)
            steps = steps + done.metrics["steps"]

        return ft.Onboarded(state, steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Return the client's own body and posterior; the global model where it never trained."""
        started = _started(download.shared, state)
        body = started.body if isinstance(started.body, dict) else download.shared.body
        return self._personal(body, started.posterior, key)

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the features of the body."""
        return ft.predict_features(task, personal.body, x)

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logits of the mean head, or log-probabilities averaged over drawn heads."""
        z = self.features(task, personal, x)
        if not isinstance(personal.noise, Tensor):
            return task.model.head(personal.head, z)

        heads = gaussian_heads.draw_heads(personal.head, personal.deviation, personal.noise)
        return gaussian_heads.mean_log_probabilities(task, heads, z)

    def diagnostics(self, task: ft.Task, personal: Personal) -> dict[str, Tensor]:
        """Record the mean variance of the posterior, and the largest entry of its mean."""
        size = gaussian_heads.head_size(personal.head)
        largest = torch.stack([leaf.abs().max() for leaf in personal.head.values()])
        return {
            "uncertainty": gaussian_heads.squares(personal.deviation) / size,
            "max_head_weight": largest.max(),
        }

    def _round(
        self,
        task: ft.Task,
        shared: ServerState,
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
        *,
        train_body: bool,
    ) -> Round:
        """Run M-step, E-step and, if wanted, the training of the body."""
        # M-step: from the means before the E-step
        terms = self._confidence(shared, state)

        # E-step; a posterior that is not finite is replaced by the old one
        prior = gaussian_heads.HeadPrior(shared.head, terms.rho)
        head = self._train_posterior(task, shared.body, state.posterior, prior, data, key)
        is_sound = head.sound()
        posterior = tree.where(is_sound, head.params, state.posterior)
        metrics = {
            **terms._asdict(),
            "steps": head.steps,
            "head_loss": head.loss,
            "head_restored": 1.0 - is_sound.float(),
        }

        # the body, under heads of the new posterior; again the old one if it is not finite
        body = shared.body
        if train_body:
            loss = partial(body_loss, draws=self.draws)
            trained = ft.train(
                task, loss, body, context=posterior, data=data.train, key=key.fold("body")
            )
            is_sound = trained.sound()
            body = tree.where(is_sound, trained.params, body)
            metrics["steps"] = head.steps + trained.steps
            metrics["loss"] = trained.loss
            metrics["body_restored"] = 1.0 - is_sound.float()

        # a body of its own only where that is evaluated
        body_in_state = body if isinstance(state.body, dict) else ()
        new_state = ClientState(posterior, body_in_state, torch.ones(()))
        return Round(new_state, body, metrics)

    def _train_posterior(
        self,
        task: ft.Task,
        body: ft.Params,
        posterior: gaussian_heads.HeadPosterior,
        prior: gaussian_heads.HeadPrior,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Trained:
        """Run the E-step (eq. 6): full-batch steps on features, which the body gives once."""
        return ft.train(
            task,
            partial(head_loss, draws=self.draws),
            posterior,
            context=prior,
            data=ft.cached_features(task, body, data.train, key=key),
            key=key.fold("head"),
            training=ft.Training(lr=self.head_lr, momentum=_HEAD_MOMENTUM, batch_size=0),
            steps=self.head_steps,
        )

    def _confidence(self, shared: ServerState, state: ClientState) -> Confidence:
        """Run the M-step of a client (eq. 8)."""
        posterior = state.posterior
        size = gaussian_heads.head_size(posterior.mean)

        # |sigma_j|^2 / D and |m_j - w|^2 / D
        uncertainty = gaussian_heads.squares(posterior.deviation()) / size
        distance = tree.map(torch.sub, posterior.mean, shared.head)
        deviation = gaussian_heads.squares(distance) / size
        terms = {
            "both": uncertainty + deviation,
            "uncertainty": uncertainty,
            "deviation": deviation,
        }

        # rho_j^2; the first round has the initial scale
        variance = torch.where(state.trained > 0, terms[self.confidence], self.initial_scale**2)
        variance = variance.clamp(min=_LEAST_VARIANCE)
        return Confidence(1.0 / variance, variance.sqrt(), uncertainty, deviation)

    def _personal(
        self, body: ft.Params, posterior: gaussian_heads.HeadPosterior, key: ft.Key
    ) -> Personal:
        noise: Tensor | tuple[()] = ()
        if self.prediction_draws:
            shape = (self.prediction_draws, gaussian_heads.head_size(posterior.mean))
            noise = ft.normal(key.fold("predict"), shape)
        return Personal(body, posterior.mean, posterior.deviation(), noise)


def _started(shared: ServerState, state: ClientState) -> ClientState:
    """Return the state, in which a client that has not trained yet starts from what it received."""
    posterior = state.posterior._replace(mean=shared.head)
    body = shared.body if isinstance(state.body, dict) else ()
    fresh = ClientState(posterior, body, state.trained)
    started: ClientState = tree.where(state.trained > 0, state, fresh)
    return started
