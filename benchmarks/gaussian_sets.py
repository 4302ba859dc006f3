"""pFedFDA with several sets of Gaussians at the server, of which each client uses one.

The sets are chosen as IFCA chooses models (Ghosh et al. 2020, Algorithm 1): a client takes the set
with the least mean cross-entropy over its training examples, under the received body and its own
class prior. All clients share the body. A set becomes the mean of what the clients that chose it
return; a set that no client chose stays as it is. Only the means of the classes differ at the
start: uniform in [0, 1], each set from random numbers of its own.

A client without examples takes the first set.

This is a measured idea and no method of the package: docs/results/options.md says what it gains. It
is made for the defaults of pFedFDA, not for pooled statistics or a temperature that is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedtailor import toolkit as ft
from fedtailor.algorithms._gaussian_classifier import ServerState, classifier
from fedtailor.algorithms.pfedfda import ClientState, Personal, PFedFDA


@dataclass(frozen=True, kw_only=True)
class GaussianSets(PFedFDA):
    """pFedFDA whose clients choose among ``sets`` of class means and covariance.

    ``means`` of the server are (sets, classes, d), ``covariance`` is (sets, d, d).
    """

    sets: ft.PositiveInt = 2

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """The choice of a set, and pFedFDA's own."""
        return [ft.OtherAdaptation(f"choice among {self.sets} sets"), *super().adaptation]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the body, and all sets; of these a client sends its own."""
        d = task.model.feature_dim
        of_one_set = partial(ft.Field, weight="own", weight_axes=1, rows=1, bound=2.0**20)
        return {
            "body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY)),
            "means": of_one_set(kind="class_means", shapes=(self.sets, task.num_classes, d)),
            "covariance": of_one_set(kind="covariance", shapes=(self.sets, d, d)),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body, uniform means and identities."""
        d = task.model.feature_dim
        means = ft.uniform(key.common("means"), (self.sets, task.num_classes, d))
        return ServerState(task.initial(key, *ft.BODY), means, torch.eye(d).repeat(self.sets, 1, 1))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Choose a set, and train and estimate as pFedFDA does with it."""
        chosen = self._choose(task, download.shared, data, key)
        one = download._replace(shared=_chosen_set(download.shared, chosen))
        update = super().local_update(task, one, state, data, key)

        # The other sets have weight 0.
        is_chosen = (torch.arange(self.sets) == chosen).to(data.info.num_train.dtype)
        upload = dict(update.upload)
        for name in ("means", "covariance"):
            value = upload[name].value
            stacked = is_chosen.to(value.dtype).reshape(-1, 1, 1) * value
            upload[name] = ft.Mean(stacked, is_chosen * data.info.num_train)
        return update._replace(upload=upload)

    def global_model(self, task: ft.Task, server: ServerState) -> Personal | None:  # type: ignore[override]
        """Return None: no set is that of all clients."""
        return None

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState | tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Choose a set, and personalize as pFedFDA does with it."""
        chosen = self._choose(task, download.shared, data, key)
        one = download._replace(shared=_chosen_set(download.shared, chosen))
        return super().personalize(task, one, state, data, key)

    def _choose(
        self, task: ft.Task, shared: ServerState, data: ft.ClientData, key: ft.Key
    ) -> Tensor:
        """Return the number of the set of least loss (); the first one of a tie."""
        features = self.table(task, shared.body, data.train, key.fold("choose"))
        prior = self._class_prior(data.info.class_counts)

        losses = []
        for means, covariance in zip(shared.means, shared.covariance, strict=True):
            head = classifier(means, covariance, prior, self.solver_shrinkage)
            of_rows = cross_entropy(head.logits(features.x), features.y, reduction="none")
            weighted = torch.where(features.weight > 0, of_rows * features.weight, 0.0)
            losses.append(weighted.sum())
        return torch.stack(losses).nan_to_num(nan=torch.inf).argmin()


def _chosen_set(shared: ServerState, chosen: Tensor) -> ServerState:
    place = chosen.reshape(1)
    return shared._replace(
        means=shared.means.index_select(0, place)[0],
        covariance=shared.covariance.index_select(0, place)[0],
    )
