"""What a site remembers of its answers: its division, and what it has said of its data.

It keeps the secrets by which it divides its examples and draws random numbers.

The site divides its examples once, by a seed of its own, whatever a server asks for. Two answers
about examples that differ by one would tell that one. For the same reason a question about the data
is answered once, and the answer is read from the file when it is asked again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import to_json, write_json
from fedtailor.core.errors import DataError
from fedtailor.core.options import show
from fedtailor.core.reading import read_object
from fedtailor.core.text import counted
from fedtailor.data.options import DataOptions
from fedtailor.deployment.policy import LARGEST_SEED, SitePolicy

MEMORY_FILE = "answers.json"
_DIVIDING = (
    "fraction",
    "subsampling",
    "train_size",
    "test",
    "test_share",
    "folds",
    "fold",
    "val_fraction",
)
"""Keys of ``[data]`` by which the examples of a site are divided."""
_SPARE_DIVISIONS = 2
"""Divisions that a server may try beside one for each purpose, before one is accepted."""


class SiteMemory:
    """The file ``answers.json`` of a site."""

    def __init__(self, folder: Path, policy: SitePolicy) -> None:
        """Read the file, which is made when something is first remembered.

        Raises:
            DataError: it is damaged.
        """
        self._path = folder / MEMORY_FILE
        self._policy = policy
        self._record: dict[str, Any] = {
            "seed": None,
            "secret": None,
            "division": None,
            "answers": {},
        }
        if self._path.exists():
            self._record |= read_object(self._path, within=folder)

    @property
    def seed(self) -> int:
        """The seed of the division; a secret one is drawn when it is first needed."""
        if self._policy.split_seed != "secret":
            return self._policy.split_seed

        # It is written with the first division by it.
        if self._record["seed"] is None:
            self._record["seed"] = secrets.randbelow(LARGEST_SEED + 1)
        seed: int = self._record["seed"]
        return seed

    def key_number(self, plan: str) -> int | None:
        """Return what stands for this site in the keys of its random numbers in a run.

        A server that knew these keys would know which example is in which batch. So they hold a
        number that follows from a secret of the site and the plan: the same whenever the run
        continues, another one in every other run. None: others may know the keys too.

        Args:
            plan: digest of the plan of the run.
        """
        if self._policy.split_seed != "secret":
            return None

        # 63 bits, as a key holds them.
        digest = hashlib.blake2b(plan.encode(), key=self._secret(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def noise_secret(self, release: str) -> bytes:
        """Return 32 bytes from which the noise of a release follows: always the same ones.

        Args:
            release: all that what is released follows from, such as its digest.
        """
        return hashlib.blake2b(
            release.encode(), key=self._secret(), digest_size=32, person=b"noise"
        ).digest()

    def _secret(self) -> bytes:
        """Return the secret of the site, which is drawn once."""
        if self._record["secret"] is None:
            self._remember(secret=secrets.token_hex(32))
        return bytes.fromhex(self._record["secret"])

    def keep_division(self, data: DataOptions, parts: Mapping[str, int]) -> None:
        """Remember how the examples are divided, or check that they are divided as before.

        Args:
            data: by which they were divided.
            parts: number of examples for training, validation and test (train, val, test), and all.

        Raises:
            ConfigError: a part is smaller than the policy allows.
            DataError: the examples were divided in another way before.
        """
        # Without another word, a site tests on a share of its own examples.
        division = {name: getattr(data, name) for name in _DIVIDING}
        division |= {"test": "given" if data.test == "given" else "own", "seed": self.seed}
        before = self._record["division"]
        if before is None:
            # Whether a division leaves enough examples tells something of their number.
            self.answer_once("ways to divide", division, lambda: True, spare=_SPARE_DIVISIONS)

        division["examples"] = dict(parts)
        for key, value in division.items():
            if before is not None and value != before.get(key):
                raise _other_division(key, before.get(key), value)

        self._policy.check_parts(parts)
        if before is None:
            self._remember(division=division)

    def answer_once(
        self, kind: str, question: Any, compute: Callable[[], Any], *, spare: int = 0
    ) -> Any:
        """Return the answer to a question about the data, computed when it is first asked.

        Args:
            kind: of the question.
            question: all that the answer depends on, ready for JSON.
            compute: returns the answer, ready for JSON.
            spare: how many questions are answered beside one for each purpose.

        Raises:
            DataError: as many others of its kind were answered as the policy has purposes.
        """
        answers = self._record["answers"].get(kind, {})
        digest = hashlib.sha256(to_json(question).encode()).hexdigest()
        if digest not in answers:
            limit = self._policy.purposes
            if len(answers) >= limit + spare:
                message = (
                    f"this site describes its data for {counted(limit, 'purpose')} only, and this "
                    f"request is for another one ({kind}). Ask it for the same as before, or ask "
                    "its operator to raise 'purposes' in [policy] of its site.toml."
                )
                raise DataError(message, key="site.policy.purposes", allowed=limit, got="another")

            # It may ask for other answers, so what is remembered is looked at again.
            answer = compute()
            every = self._record["answers"]
            answers = {**every.get(kind, {}), digest: answer}
            self._remember(answers={**every, kind: answers})

        return answers[digest]

    def _remember(self, **entries: Any) -> None:
        """Write entries to the file, and then use them: what is not there must not be used."""
        record = {**self._record, **entries}
        write_json(self._path, record)
        self._record = record


def _other_division(key: str, before: object, now: object) -> DataError:
    """Return the error for a division that is not the one of before.

    The server reads it: the seed stays a secret, and so do the numbers of examples.
    """
    names = {"examples": "numbers of examples", "seed": "the seed of its policy"}
    what = names.get(key, f"data.{key}")
    is_own_business = key in ("seed", "examples")
    values = "" if is_own_business else f", {show(before)} then and {show(now)} now"
    message = (
        f"this site has divided its examples once, and keeps that: {what} would change{values}. "
        f"Only its operator can start again, by removing {MEMORY_FILE}."
    )
    return DataError(message, key="site.policy")
