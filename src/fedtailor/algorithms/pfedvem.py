"""pFedVEM: a shared body, and linear heads that are Gaussian perturbations of a latent global head.

Zhu, Ma and Blaschko 2023, "Confidence-aware personalized federated learning via variational expectation
maximization", CVPR. Client j keeps a diagonal Gaussian q_j over its head, with means m_j and deviations
sigma_j = softplus(r_j), and expects the head within rho_j^2 of the global head w (D numbers). A round, in this order:

    M-step at the client (their eq. 8):  rho_j^2 = (|sigma_j|^2 + |m_j - w|^2) / D,   confidence tau_j = 1 / rho_j^2;
    E-step (eq. 6):  full-batch steps on (m_j, r_j) down  E_q[sum_n CE] + KL(q_j || N(w, rho_j^2)), the body frozen;
    body:  mini-batch steps down the mean cross-entropy under heads drawn from q_j;
    server (eq. 9):  w = sum_j tau_j m_j / sum_j tau_j,   body theta = sum_j n_j theta_j / sum_j n_j.

All clients train in every round, the cohort uploads. The confidence is that of the M-step, with the means of before
the E-step, while the uploaded means are those of after it.

Messages: down and up ``head`` (w; m_j with weight tau_j) and ``body`` (theta; weight n_j): one number more than FedAvg.
Variances never leave a client.

Deviations (P: paper, C: released code). P and C agree on the algorithm, so the presets ``reference`` and ``paper`` are
the same; they differ in how data are divided, and in what P leaves open:
* w starts standard normal, biases too, as C (P: unspecified); a client starts at the w that it receives first, with
  ``initial_scale`` for its deviations and rho.
* The personal model is the client's own body and m_j of before aggregation, as C (P: unspecified): so ``local`` after
  the last round is P's PM, and ``personalize`` returns the same model (``evaluated_body`` = "global" takes the
  aggregated body); ``global`` is P's GM. A client that never trained gets the global model. Predictions use m_j;
  with ``prediction_draws`` they average the probabilities of drawn heads.
* C averages at least two uploads per round (P: any number): ``federation.min_clients`` = 2.
* ``confidence`` = "uncertainty" or "deviation" keeps one term of eq. 8, in the divergence as in the aggregation (P: "in
  the confidence value"). The first round has rho = ``initial_scale`` all the same.
* A client whose head is not finite after the E-step keeps that of before, as C; so does one whose body is not, which C
  lets pass. Metrics ``head_restored`` and ``body_restored`` tell.
* rho^2 is kept above 1e-12, and deviations above 1e-8 in logarithms.
* C's server momentum, 0 in all its configurations, is left out.
* With ``federation.train`` = "cohort" the cohort alone trains: an approximation for many clients.
* A new client (P, C: not treated) starts like any other and takes ``onboard_rounds`` M- and E-steps under the global
  body, which it trains too with ``onboard_body``; with 0 rounds it gets the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages, Reduced
from fedtailor.core.noise import normal
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Batch, LossOutput, Params, Task, Training
from fedtailor.statistics.gaussian_heads import (
    HeadPosterior,
    HeadPrior,
    divergence,
    draw_heads,
    expected_losses,
    head_size,
    mean_log_probabilities,
    raw_of,
    squares,
)
from fedtailor.training.blocks import cached_features, train
from fedtailor.training.losses import weighted_mean
from fedtailor.training.tuning import in_words

_HEAD_MOMENTUM = 0.9
_LEAST_VARIANCE = 1e-12  # of a head about the global one


class Global(NamedTuple):
    """Server state: body, and latent global head."""

    body: Params
    head: Params


class State(NamedTuple):
    """Client state: posterior, body of the last training (() where it is not evaluated), 1 once it has trained."""

    posterior: HeadPosterior
    body: Params | tuple[()]
    trained: Tensor


class Personal(NamedTuple):
    """A client's model: a body, and a Gaussian over its head; noise (draws, D) where predictions draw heads."""

    body: Params
    head: Params
    deviation: Params
    noise: Tensor | tuple[()]


def head_loss(
    task: Task, posterior: HeadPosterior, prior: HeadPrior, batch: Batch, key: Key, *, draws: int
) -> LossOutput:
    """Negative evidence lower bound on cached features: summed cross-entropy plus divergence from the prior."""
    deviation = posterior.deviation()
    losses = expected_losses(task, posterior.mean, deviation, batch.x, batch.y, key, draws)
    return LossOutput((losses * batch.weight).sum() + divergence(posterior.mean, deviation, prior))


def body_loss(task: Task, body: Params, posterior: HeadPosterior, batch: Batch, key: Key, *, draws: int) -> LossOutput:
    """Mean cross-entropy under heads drawn from the posterior, which stays as it is."""
    z, buffers = task.model.features(body, batch.x, weight=batch.weight, key=key, training=True)
    losses = expected_losses(task, posterior.mean, posterior.deviation(), z, batch.y, key, draws)
    return LossOutput(weighted_mean(losses, batch.weight), buffers)


@dataclass(frozen=True, kw_only=True)
class PFedVEM(Algorithm[Global, State, Personal]):
    """Confidence-aware personalization by variational expectation maximization."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}, "paper": {}}
    trains: ClassVar[Literal["cohort", "all"]] = "all"

    head_steps: Annotated[int, Range(ge=0)] = 10
    """Full-batch steps on the posterior of the head per round (R)."""
    head_lr: Annotated[float, Range(gt=0)] = 0.001
    """Learning rate of these steps (eta), of which each sums over all examples; their momentum is 0.9."""
    draws: Annotated[int, Range(ge=1)] = 5
    """Heads drawn per step (K)."""
    initial_scale: Annotated[float, Range(gt=0)] = 1.0
    """Deviation of a client's posterior and prior before its first round."""
    confidence: Literal["both", "uncertainty", "deviation"] = "both"
    """Terms of the confidence: variance of the posterior, its distance from the global head, or both."""
    evaluated_body: Literal["local", "global"] = "local"
    """The body of a client's personal model: that of its own last training, or the server's."""
    prediction_draws: Annotated[int, Range(ge=0)] = 0
    """Heads whose probabilities are averaged for a prediction; 0: the mean head predicts."""
    onboard_rounds: Annotated[int, Range(ge=0)] = 1
    """Rounds of a new client on its own data."""
    onboard_body: bool = False
    """Whether a new client trains the body too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.onboard_body and self.evaluated_body == "global":
            raise ConfigError(
                "algorithm.onboard_body trains a body that algorithm.evaluated_body 'global' does not use.",
                key="algorithm.onboard_body",
                allowed=[False],
                got=True,
            )

    @property
    def onboarding(self) -> str:
        """Rounds under the global body, or of the body too."""
        return in_words(self.onboard_rounds, "all" if self.onboard_body else "head", "round")

    def messages(self, task: Task) -> Messages:
        """Declare body and head."""
        return {
            "body": Field(kind="model", shapes=task.shapes(*BODY)),
            "head": Field(kind="model", shapes=task.shapes("head"), weight="own"),
        }

    def init_server(self, task: Task, key: Key) -> Global:
        """Start from the common body and a standard normal head."""
        model = task.model.init(key.common("model"))
        like = task.pick(model, "head")
        noise = normal(key.common("head"), (1, head_size(like)))
        drawn = draw_heads(tree.map(torch.zeros_like, like), tree.map(torch.ones_like, like), noise)
        return Global(task.pick(model, *BODY), {name: leaf[0] for name, leaf in drawn.items()})

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start with the initial deviations; the means come with the first download."""
        model = task.model.init(key.common("model"))
        mean, body = task.pick(model, "head"), task.pick(model, *BODY)
        raw = {name: torch.full_like(leaf, raw_of(self.initial_scale)) for name, leaf in mean.items()}
        return State(HeadPosterior(mean, raw), body if self.evaluated_body == "local" else (), torch.zeros(()))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Update confidence, posterior and body, in this order."""
        shared: Global = download.shared
        state, body, metrics = self._round(task, shared, self._started(shared, state), data, key, train_body=True)
        mean = state.posterior.mean
        upload = {"body": Mean(body, data.info.num_train), "head": Mean(mean, metrics["confidence"])}
        personal = Personal(body, mean, state.posterior.deviation(), self._noise(mean, key))
        return ClientUpdate(state, upload, personal=personal, metrics=metrics)

    def aggregate(self, server: Global, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Global, tuple[()]]:
        """Take the means: of bodies by examples, of heads by confidence."""
        return Global(received["body"].or_else(server.body), received["head"].or_else(server.head)), ()

    def global_model(self, task: Task, server: Global) -> Personal:
        """Return the body with the global head, as if that were certain."""
        zeros = tree.map(torch.zeros_like, server.head)
        noise = torch.zeros(self.prediction_draws, head_size(zeros)) if self.prediction_draws else ()
        return Personal(server.body, server.head, zeros, noise)

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Take rounds on the client's own data, under the global body and head."""
        shared: Global = download.shared
        state, steps = self._started(shared, self.init_client(task, info, key)), torch.zeros((), dtype=torch.int64)
        for number in range(self.onboard_rounds):
            part = key.fold(number)
            state, body, metrics = self._round(task, shared, state, data, part, train_body=self.onboard_body)
            shared, steps = shared._replace(body=body), steps + metrics["steps"]
        return Onboarded(state, steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Personal:
        """Return the client's own body and posterior; the global model where it never trained."""
        shared: Global = download.shared
        posterior, own, _ = self._started(shared, state)
        body = own if isinstance(own, dict) else shared.body
        return Personal(body, posterior.mean, posterior.deviation(), self._noise(posterior.mean, key))

    def predict(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logits of the mean head, or log-probabilities averaged over drawn heads."""
        z = predict_features(task, personal.body, x)
        if not isinstance(personal.noise, Tensor):
            return task.model.head(personal.head, z)
        return mean_log_probabilities(task, draw_heads(personal.head, personal.deviation, personal.noise), z)

    def diagnostics(self, task: Task, personal: Personal) -> dict[str, Tensor]:
        """Record the mean variance of the posterior, and the largest entry of its mean."""
        return {
            "uncertainty": squares(personal.deviation) / head_size(personal.head),
            "max_head_weight": torch.stack([leaf.abs().max() for leaf in personal.head.values()]).max(),
        }

    def _started(self, shared: Global, state: State) -> State:
        """Return the state, in which a client that has not trained yet starts from what it received."""
        trained = state.trained > 0
        mean = tree.where(trained, state.posterior.mean, shared.head)
        body = tree.where(trained, state.body, shared.body) if isinstance(state.body, dict) else ()
        return state._replace(posterior=state.posterior._replace(mean=mean), body=body)

    def _round(
        self, task: Task, shared: Global, state: State, data: ClientData, key: Key, *, train_body: bool
    ) -> tuple[State, Params, dict[str, Tensor]]:
        """Run M-step, E-step and, if wanted, the training of the body; return state, body and metrics."""
        terms = self._confidence(shared, state)
        head = train(
            task,
            partial(head_loss, draws=self.draws),
            state.posterior,
            context=HeadPrior(shared.head, terms["rho"]),
            data=cached_features(task, shared.body, data.train, key=key),
            key=key.fold("head"),
            training=Training(lr=self.head_lr, momentum=_HEAD_MOMENTUM, batch_size=0),
            steps=self.head_steps,
        )
        posterior, params = tree.where(head.sound(), head.params, state.posterior), shared.body
        metrics = {**terms, "steps": head.steps, "head_loss": head.loss, "head_restored": 1.0 - head.sound().float()}
        if train_body:
            loss = partial(body_loss, draws=self.draws)
            body = train(
                task, loss, params, context=posterior, data=data.train, key=key.fold("body"), training=self.training
            )
            params = tree.where(body.sound(), body.params, params)
            metrics.update(steps=head.steps + body.steps, loss=body.loss, body_restored=1.0 - body.sound().float())
        return State(posterior, params if isinstance(state.body, dict) else (), torch.ones(())), params, metrics

    def _confidence(self, shared: Global, state: State) -> dict[str, Tensor]:
        """Run the M-step of a client (eq. 8); return confidence, rho, and both terms of the variance."""
        posterior = state.posterior
        size = head_size(posterior.mean)
        uncertainty = squares(posterior.deviation()) / size
        deviation = squares(tree.map(torch.sub, posterior.mean, shared.head)) / size
        terms = {"both": uncertainty + deviation, "uncertainty": uncertainty, "deviation": deviation}
        variance = torch.where(state.trained > 0, terms[self.confidence], self.initial_scale**2)
        variance = variance.clamp(min=_LEAST_VARIANCE)
        return {
            "confidence": 1.0 / variance,
            "rho": variance.sqrt(),
            "uncertainty": uncertainty,
            "model_deviation": deviation,
        }

    def _noise(self, head: Params, key: Key) -> Tensor | tuple[()]:
        """Draw what predictions by sampling need."""
        return normal(key.fold("predict"), (self.prediction_draws, head_size(head))) if self.prediction_draws else ()
