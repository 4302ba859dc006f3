"""FedPer: a shared body under a personal head of every client, both trained together.

Arivazhagan, Aggarwal, Singh, Choudhary 2019, "Federated learning with personalization layers",
arXiv:1912.00818, Algorithms 1 and 2. Client i trains (W_B, W_Pi) by SGD on its loss. The server
averages the base layers, ``W_B <- sum_i (n_i / n) W_B,i``. The personalization layers W_P are here
the last linear layer.

Messages: down ``body`` (W_B); up ``body`` (W_B,i, weight n_i). The head (W_Pi) is client state and
never sent. Buffers of batch normalization belong to the body. A personal model is the new body with
the client's own head, even if that head was trained long ago. Clients that were not drawn are
scored so too; scores of the cohort alone would hide them.

Deviations: n is that of the cohort; in the paper all clients take part. Heads start equal; in the
paper every client draws its own. The paper has no clients that come later: here they train the
common initial head on the frozen body for ``onboard_epochs``. With ``finetune_epochs``, every
client tunes a copy of its head on the final body before it predicts, as Zhang et al. 2023 (FedCR)
do for 10 epochs; a new client does so too, after onboarding.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtailor import toolkit as ft
from fedtailor.algorithms._personal_head import PersonalHead, ServerState


@dataclass(frozen=True, kw_only=True)
class FedPer(PersonalHead):
    """The body is averaged, heads are personal."""

    bounds_examples = True

    onboard_epochs: ft.NonNegativeInt = 5
    """Epochs that train the head of a client that never took part."""

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Training of the head."""
        return [ft.FineTuning("head", epochs=self.onboard_epochs)]

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where new clients predict at random."""
        if self.finetune_epochs or self.onboard_epochs:
            return []
        return ["without epochs of onboarding, new clients predict with an untrained head."]

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received body and the client's head together."""
        # W_B and W_Pi take their steps together
        model = {**download.shared.body, **state}
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)

        body = task.pick(trained.params, *ft.BODY)
        head = task.pick(trained.params, "head")
        upload = {"body": ft.Mean(body, data.info.num_train)}
        personal = ft.FineTuned(trained.params, trained.steps)
        return ft.ClientUpdate(head, upload, personal=personal, metrics=trained.metrics)

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the common head on the frozen body."""
        head = self.init_client(task, info, key)
        trained = ft.train_head(
            task, download.shared.body, head, data.train, key=key, epochs=self.onboard_epochs
        )
        return ft.Onboarded(trained.params, trained.steps)
