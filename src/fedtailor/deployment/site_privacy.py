"""What a site asks of secure sums and noise: ``[privacy]`` in ``site.toml``. No torch.

The values of the site win: what the server plans must be at least as strict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, check_options, wrong_value
from fedtailor.core.text import counted
from fedtailor.privacy.claims import round_up
from fedtailor.privacy.ledger import LEDGER_FILE, Ledger, read_entries
from fedtailor.privacy.options import Colluding, PrivacyOptions, colluding_of

_PIN = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class SitePrivacy:
    """The ``[privacy]`` section of ``site.toml``."""

    roster: str = ""
    """Fingerprint of the roster that the site trusts, which ``fedtailor site trust`` writes; empty:
    of none."""
    require_secure_sums: bool = False
    """Whether the site refuses plans in which the server gets its messages and not only sums, as
    ``fedtailor site trust`` writes where nothing else stands."""
    smallest_sum: Annotated[int, Range(ge=2)] = 3
    """Sites that a sum is over, at least."""
    colluding: Colluding = "third"
    """How many sites may work with the server, at least, without it learning more than sums.
    third: fewer than a third of the sites that train."""
    most_epsilon: Annotated[float, Range(ge=0)] = 0.0
    """The most that all runs together may tell of a training example, by the ledger of the site,
    and a plan by its ``privacy.epsilon``; plans without it are refused then. 0: any plan."""
    most_delta: Annotated[float, Range(ge=1e-10, lt=1)] = 1e-5
    """The delta for which ``most_epsilon`` is meant; plans with a larger one are refused then."""

    def __post_init__(self) -> None:
        check_options(self, owner="privacy")
        if self.roster and not _PIN.fullmatch(self.roster):
            allowed = "sha256: and 64 hex digits, as 'fedtailor site trust' writes it"
            raise wrong_value("privacy.roster", allowed, self.roster)

    def check_sums(self, who: str, fewest: int, colluding: int, num_sites: int) -> None:
        """Check that sums are as strict as the site wants them.

        Args:
            who: asks for them, for the message.
            fewest: sites that a sum is over, at least.
            colluding: sites that may work with the server.
            num_sites: sites that train.

        Raises:
            ConfigError: they are not.
        """
        if fewest < self.smallest_sum:
            least = f"{self.smallest_sum} or more"
            message = f"{who} asks for a sum over {fewest} sites; site.toml allows {least}."
            raise ConfigError(message, key="privacy.smallest_sum", allowed=least, got=fewest)

        own = colluding_of(num_sites, self.colluding)
        if colluding < own:
            message = (
                f"{who} allows for privacy.colluding = {colluding}, sites that work with the "
                f"server; site.toml asks for {own} or more."
            )
            raise ConfigError(message, key="privacy.colluding", allowed=f"{own} or more")

    def check_plan(self, privacy: PrivacyOptions, num_sites: int, *, trains: bool) -> None:
        """Check that a plan protects the site as it wants to be protected.

        Args:
            privacy: the section of the plan.
            num_sites: sites of the plan that can take part in training.
            trains: whether this site is one of them. Others send no messages of the method.

        Raises:
            ConfigError: it does not.
        """
        if self.require_secure_sums and not privacy.secure_sums:
            message = "the plan has no secure sums; site.toml requires them."
            raise ConfigError(message, key="privacy.secure_sums", allowed="true", got="false")

        if privacy.secure_sums and trains:
            if not self.roster:
                message = "this site trusts no roster for secure sums: 'fedtailor site trust'."
                raise ConfigError(message, key="privacy.roster", allowed="a roster", got="none")

            colluding = colluding_of(num_sites, privacy.colluding)
            fewest = max(privacy.smallest_sum, colluding + 2)
            self.check_sums("the server", fewest, colluding, num_sites)

        self._check_epsilon(privacy)

    def _check_epsilon(self, privacy: PrivacyOptions) -> None:
        if not self.most_epsilon:
            return

        if privacy.unit != "none" and privacy.delta > self.most_delta:
            message = (
                f"the plan has privacy.delta = {privacy.delta:g}; site.toml allows a delta of "
                f"{self.most_delta:g} or less."
            )
            raise ConfigError(message, key="privacy.delta", allowed=f"{self.most_delta:g}")

        is_bounded = privacy.unit != "none" and 0 < privacy.epsilon <= self.most_epsilon
        if not is_bounded:
            planned = "no differential privacy"
            if privacy.unit != "none":
                planned = f"privacy.epsilon = {privacy.epsilon:g}"
            message = (
                f"the plan has {planned}; site.toml allows an epsilon of {self.most_epsilon:g} "
                "or less."
            )
            raise ConfigError(message, key="privacy.epsilon", allowed=f"{self.most_epsilon:g}")


def describe_told(folder: Path, privacy: SitePrivacy) -> list[str]:
    """Return in sentences what runs with noise have told of single training examples.

    Args:
        folder: of the site.
        privacy: what the site asks of noise.

    Raises:
        DataError: the ledger is damaged.
    """
    # In memory: the site may be writing to the file.
    ledger = Ledger()
    ledger.add(*read_entries(folder / LEDGER_FILE))
    rounds: dict[str, set[int]] = {}
    for entry in ledger.entries:
        rounds.setdefault(entry.run, set()).add(entry.round)
    if not rounds:
        return []

    sentences = []
    for run, told in rounds.items():
        budget = _spell_epsilon(ledger.steps(run=run), privacy.most_delta)
        sentences.append(f"Run {run}: {counted(len(told), 'round')}, {budget}.")

    limit = f", of {privacy.most_epsilon:g} at most" if privacy.most_epsilon else ""
    budget = _spell_epsilon(ledger.steps(), privacy.most_delta)
    return [*sentences, f"All runs with noise together: {budget}{limit}."]


def _spell_epsilon(steps: Mapping[tuple[float, float], int], delta: float) -> str:
    # It imports SciPy, which no other command on a site's folder needs.
    from fedtailor.privacy.accountant import Release, epsilon_of

    releases = [Release(noise, rate, count) for (noise, rate), count in steps.items()]
    epsilon = epsilon_of(delta, releases)
    return f"epsilon {round_up(epsilon)} (delta {delta:g}) per example"
