"""The upload of a site on its way into a sum under masks."""

from __future__ import annotations

from collections.abc import Mapping

from fedtailor.core.fixed_point import FixedPoint
from fedtailor.core.message import Messages, Upload
from fedtailor.core.upload_checks import Problem, problem_with
from fedtailor.core.upload_vector import UploadVector
from fedtailor.deployment.site_masks import SiteMasks
from fedtailor.deployment.wire import wrong


class MaskedUpload:
    """What becomes of the upload of one attempt at a round."""

    def __init__(
        self,
        masks: SiteMasks,
        messages: Messages,
        fixed: FixedPoint,
        attempt: tuple[int, int],
        blobs: Mapping[str, bytes],
    ) -> None:
        """Check the sum before any work is done for it.

        Args:
            masks: of the site.
            messages: the declaration of the method.
            fixed: how numbers become whole numbers.
            attempt: the round, and the number of the attempt.
            blobs: of the request: what all sites receive, and who is in the sum.

        Raises:
            DataError: the sum is refused.
            RunError: the journal cannot be written.
        """
        if "shared" not in blobs:
            raise wrong("shared", "what all sites receive", None)

        self._masks = masks
        self._messages = messages
        self._fixed = fixed
        self._vector = UploadVector(messages, fixed)
        self._blobs = blobs
        self._request = masks.request("train", *attempt, self._vector.digest, blobs["shared"])
        masks.allow(self._request, blobs)

    def problem_with(self, upload: Upload, num_train: int) -> Problem | None:
        """Return what is wrong with an upload, which the server could not see; None: nothing."""
        return problem_with(upload, self._messages, num_train) or self._fixed.problem_with(upload)

    def mask(self, upload: Upload) -> bytes:
        """Return a sound upload under masks.

        Raises:
            DataError: the request is refused.
            RunError: the journal cannot be written.
        """
        vector = self._vector.encode(upload).numpy()
        return self._masks.mask(self._request, self._blobs, vector)
