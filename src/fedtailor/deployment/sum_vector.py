"""What a site adds to a sum under masks: an upload in training, scores, and numbers of the method.

Server and sites lay out the vector by themselves, from the plan and the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedtailor.core.message import Messages, Upload
from fedtailor.core.reduction import PartialSum
from fedtailor.core.report_vector import ReportVector
from fedtailor.core.scores import ReportSums, Scores
from fedtailor.core.upload_checks import Problem, problem_with
from fedtailor.core.upload_vector import UploadVector
from fedtailor.deployment.limits import MOST_EXAMPLES
from fedtailor.deployment.mask_kinds import FINAL
from fedtailor.privacy.masks.primitives import digest_of
from fedtailor.privacy.masks.session import SumRequest, digest_of_download
from fedtailor.simulation.programs import PersonalizeRequest, Request, TrainRequest

if TYPE_CHECKING:
    from fedtailor.core.fixed_point import FixedPoint
    from fedtailor.deployment.plan import DeploymentPlan


class SumVector:
    """What is where in the vectors of one sum."""

    def __init__(
        self,
        plan: DeploymentPlan,
        request: Request,
        numbers: Sequence[str],
        messages: Messages,
        fixed: FixedPoint | None = None,
    ) -> None:
        """Lay out the vector.

        Args:
            plan: of the run.
            request: that is answered.
            numbers: names of what the method reports of its training.
            messages: the declaration of the method.
            fixed: how its numbers become whole numbers; None: nothing is uploaded.
        """
        test_sets = ["clients"]
        names: Sequence[str] = ()
        self._attempt = 0
        is_final = False
        if isinstance(request, TrainRequest):
            test_sets = test_sets if request.evaluate else []
            names = numbers
            self._attempt = request.attempt
        elif isinstance(request, PersonalizeRequest):
            test_sets += ["validation"] if request.validate else []
            names = ("steps",)
            is_final = request.keep
        else:
            is_final = request.final

        # Models of the last evaluation may be those of an earlier round.
        self._kind = FINAL + request.name if is_final else request.name
        self._plan = bytes.fromhex(plan.digest)
        self._report = ReportVector(
            num_classes=len(plan.inputs.class_names),
            test_sets=test_sets,
            numbers=names,
            rank=request.rank,
            population=plan.population,
            most_examples=MOST_EXAMPLES,
        )
        self._messages = messages
        self._fixed = fixed
        self._upload = None if fixed is None else UploadVector(messages, fixed)
        self._of_upload = 0 if self._upload is None else self._upload.entries
        """Entries of the upload, which come first."""

    @property
    def entries(self) -> int:
        """Length of a vector."""
        return self._of_upload + self._report.entries

    @property
    def digest(self) -> bytes:
        """SHA-256 of what is where."""
        upload = b"" if self._upload is None else self._upload.digest
        return digest_of("sum", upload, self._report.digest)

    def request(self, round: int, shared: bytes) -> SumRequest:
        """Return what the sum is of, in a round in which all sites receive ``shared``."""
        received = digest_of_download(shared)
        return SumRequest(self._kind, round, self._attempt, self._plan, self.digest, received)

    def problem_with(self, upload: Upload, num_train: int) -> Problem | None:
        """Return what is wrong with an upload, which the server could not see; None: nothing."""
        assert self._fixed is not None
        problem = problem_with(upload, self._messages, num_train)
        return problem or self._fixed.problem_with(upload)

    def encode(
        self, upload: Upload, scores: Mapping[str, Scores], numbers: Mapping[str, Tensor]
    ) -> Tensor:
        """Return what a site adds to the sum, (entries,), int64."""
        report = self._report.encode(scores, numbers)
        if self._upload is None:
            return report
        return torch.cat((self._upload.encode(upload), report))

    def problem_with_sum(self, total: Tensor, senders: int) -> str:
        """Return why a sum cannot be one of sound vectors; empty if it can be."""
        problem = ""
        if self._upload is not None:
            problem = self._upload.problem_with_sum(total[: self._of_upload], senders)
        return problem or self._report.problem_with_sum(total[self._of_upload :], senders)

    def decode_upload(self, total: Tensor, senders: int) -> dict[str, PartialSum]:
        """Return the sums of all fields of an upload."""
        assert self._upload is not None
        return self._upload.decode(total[: self._of_upload], senders)

    def decode_report(self, total: Tensor, senders: frozenset[int]) -> ReportSums:
        """Return the sums of scores and numbers."""
        return self._report.decode(total[self._of_upload :], senders)
