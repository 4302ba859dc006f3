"""What a site tells of its single examples: hidden by noise of its own, and counted in its ledger.

The server knows the seed of a run, so noise that followed from it would hide nothing. Here it
follows from a secret of the site, and from all that a release follows from: the same request gets
the same bytes, also after a kill, and another model never gets the same noise. A release is in the
ledger, which all runs share, before it leaves.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedtailor.core import rng
from fedtailor.core.errors import RunError
from fedtailor.core.federation import Roster
from fedtailor.core.message import Upload
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.experiment.assembly import refuse_private_normalization
from fedtailor.privacy.accountant import Release
from fedtailor.privacy.class_statistics import SumsMechanism, of_sums, with_noisy_sums
from fedtailor.privacy.examples import (
    ExamplePlan,
    Steps,
    bounds_of,
    epsilon_of_steps,
    release_of,
)
from fedtailor.privacy.ledger import LEDGER_FILE, Ledger, LedgerEntry
from fedtailor.privacy.plan import noise_of
from fedtailor.simulation.privacy_checks import check_examples

log = logging.getLogger("fedtailor.site")


def check_noise(plan: DeploymentPlan, roster: Roster) -> None:
    """Check that noise of this site can hide its examples, whatever the server has checked.

    Args:
        plan: of the run, with noise.
        roster: of the run, as far as the site knows it.

    Raises:
        ConfigError: it cannot.
    """
    config = plan.config
    privacy = config.privacy
    privacy.check_for_sites()
    check_examples(plan.algorithm, roster, privacy)
    is_embedded = plan.inputs.encoder is not None
    refuse_private_normalization(config, plan.inputs.kind, is_embedded=is_embedded)


class SiteReleases:
    """What a site tells of its examples in one run."""

    def __init__(
        self,
        folder: Path,
        memory: SiteMemory,
        options: SiteOptions,
        plan: DeploymentPlan,
        client: int,
        num_train: int,
        sums: tuple[int, int],
    ) -> None:
        """Continue with the ledger of the site, or begin one.

        Args:
            folder: of the site.
            memory: of the site, with its secret.
            options: of the site.
            plan: of the run.
            client: number of the site.
            num_train: training examples, at least one.
            sums: with ``noise_from = "server"``, how many sites a sum is over at least, and how
                many of them keep their noise to themselves; else (1, 1).

        Raises:
            DataError: the ledger is damaged.
        """
        privacy = plan.config.privacy
        schedule = plan.config.schedule
        algorithm = plan.algorithm
        fewest, shares = sums
        self._ledger = Ledger(folder / LEDGER_FILE)
        self._memory = memory
        self._limits = options.privacy
        self._run = plan
        self._client = client

        # Steps of training, sums over features, or both, with the same noise.
        radius = algorithm.feature_bound or 0.0
        self._trains = algorithm.bounds_examples
        if self._trains:
            release = release_of(privacy, schedule, algorithm, num_train)
        else:
            release = Release(noise_of(privacy, schedule), rate=1.0, times=1)
        releases = {client: release}
        of_both = radius if self._trains else 0.0
        self._plan = ExamplePlan(releases, privacy, schedule.rounds, fewest, shares, of_both)

        self._mechanism: SumsMechanism | None = None
        if radius:
            # The noise of others must be enough for the examples of this site.
            most = num_train if shares == 1 else max(num_train, privacy.most_examples)
            self._mechanism = SumsMechanism(radius, release.noise / math.sqrt(shares), most)
        self._within: Steps = Counter()
        """Steps of all runs that were seen to keep to the limit of the site."""

    def in_training(self, round: int, *origin: bytes) -> ExamplePlan | None:
        """Return what hides examples in steps of training; None: there are none.

        Args:
            round: of the request.
            origin: all that the result follows from beside the plan and the data of the site.

        Raises:
            RunError: it would tell too much, or the ledger cannot be written.
        """
        if not self._trains:
            return None

        release = self._plan.releases[self._client]
        secret = self._enter(round, release, self._plan.privacy.clip, origin)
        return replace(self._plan, secret=secret)

    def hidden(self, round: int, upload: Upload) -> Upload:
        """Return an upload as it may leave: sums over features get their noise here.

        Raises:
            RunError: it would tell too much, or the ledger cannot be written.
        """
        if self._mechanism is None:
            return upload

        origin = [name.encode() + _raw(upload[name].value) for name in of_sums(upload)]
        release = Release(self._plan.releases[self._client].noise, rate=1.0, times=1)
        secret = self._enter(round, release, self._mechanism.radius, origin)

        # The purpose is that of a simulation, which tests compare.
        purpose = "privacy/sums/0" if self._trains else "privacy/site"
        seed = self._run.config.seeds[0]
        key = rng.new_key(seed, round=round, client=self._client, purpose=purpose)
        return with_noisy_sums(upload, self._mechanism, key, secret)

    def record(self) -> dict[str, Any]:
        """Return what this run has told of the examples so far, in the form of a result."""
        told = self._ledger.steps(run=self._run.run)
        epsilon = epsilon_of_steps(self._plan.privacy.delta, told)
        record = self._plan.record({self._client: epsilon})
        return {**record, "bounds": bounds_of(self._run.algorithm), "at_sites": True}

    def _enter(self, round: int, release: Release, clip: float, origin: Sequence[bytes]) -> bytes:
        """Write a release into the ledger, and return the secret of its noise.

        The same origin has the same secret, and is entered once.
        """
        # Last bits may differ between versions: that would be another result with the same noise.
        parts = [self._run.digest, str(self._client), str(round), torch.__version__]
        parts += [hashlib.sha256(part).hexdigest() for part in origin]
        secret = self._memory.noise_secret("/".join(parts))

        entry = LedgerEntry(
            round=round,
            attempt=0,
            noise=release.noise,
            rate=release.rate,
            clip=clip,
            cohort=(self._client,),
            digest=hashlib.sha256(secret).hexdigest(),
            steps=release.times,
            run=self._run.run,
        )
        self._check_budget(entry)
        self._ledger.add(entry)
        log.info("round %s is in the ledger of what this site tells of its examples", round)
        return secret

    def _check_budget(self, entry: LedgerEntry) -> None:
        """Check that a release would tell no more than the run and the site allow.

        Raises:
            RunError: it would.
        """
        budget = self._plan.privacy.epsilon
        if not self._plan.keeps_budget(self._client, self._ledger.steps(entry, run=entry.run)):
            raise RunError(
                f"privacy.epsilon = {budget:g} is used up at this site, which takes no further "
                "part in this run.",
                key="privacy.epsilon",
            )

        most = self._limits.most_epsilon
        told = self._ledger.steps(entry)
        if not most or told <= self._within:
            return

        # Once for all rounds that are planned, if there is room for all of them.
        planned = self._ledger.steps() + self._plan.steps(self._client)
        for steps in (planned, told):
            if epsilon_of_steps(self._limits.most_delta, steps) <= most:
                self._within = steps
                return
        raise RunError(
            f"this site has reached its own limit of epsilon {most:g} for all runs "
            "(privacy.most_epsilon in site.toml), and takes no further part.",
            key="privacy.most_epsilon",
            allowed=f"{most:g}",
        )


def _raw(value: torch.Tensor) -> bytes:
    return value.contiguous().numpy().tobytes()
