"""A site in one run: its data as the plan wants them, its states, and the work of a round.

The programs are those of a simulation (:class:`fedtailor.simulation.clients.LocalClients`), in a
federation in which only this site has data. So a site computes the bits that the simulation
computes for the client with its number, unless its random numbers are a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedtailor.core.atomic import write_whole
from fedtailor.core.engine import Failure, one_thread
from fedtailor.core.errors import ConfigError, DataError, describe_error, one_line
from fedtailor.core.fixed_point import FixedPoint, make_fixed_point
from fedtailor.core.message import Messages, Upload, with_noise_on_counts
from fedtailor.core.scores import Scores
from fedtailor.core.tree import Tree, leaves
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.packing import pack_upload, unpack_download
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.site_curve import note_accuracy
from fedtailor.deployment.site_data import prepare
from fedtailor.deployment.site_masks import SiteMasks
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.deployment.site_models import write_version
from fedtailor.deployment.site_releases import SiteReleases, check_noise
from fedtailor.deployment.state import SiteState, Version, forget_old_runs
from fedtailor.deployment.sum_vector import SumVector
from fedtailor.deployment.wire import Work, from_blob, wrong
from fedtailor.privacy.claims import of_card
from fedtailor.privacy.examples import ExamplePlan
from fedtailor.privacy.masks.session import SumRequest
from fedtailor.serving.model_folder import ClientModel
from fedtailor.serving.site_data import federation_of_one
from fedtailor.simulation.calibration import calibrate_client
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.clients import LocalClients, PersonalizeReply
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.programs import (
    PersonalizeRequest,
    Request,
    ScoreRequest,
    TrainRequest,
)

_STATES = "states"
_DIGEST_FILE = "data.sha256"

log = logging.getLogger("fedtailor.site")


class SiteAnswer(NamedTuple):
    """An answer, and what the log of the site says of it."""

    head: dict[str, Any]
    sizes: dict[str, int]
    """What is in it, with the number of bytes."""
    out: Any = None
    """A tree of tensors: the blob ``out`` of the message."""
    blobs: Mapping[str, bytes] = {}
    """Its other blobs."""


class MaskedAnswer(NamedTuple):
    """An answer that goes into a sum."""

    vector: SumVector
    """What is where in it."""
    request: SumRequest
    """What the sum is of."""
    blobs: Mapping[str, bytes]
    """Of the message, which names the members of the sum."""


def reason_answer(key: str, reason: str) -> SiteAnswer:
    """Return the answer of a site that gives no other one; ``key`` is the kind of reason."""
    return SiteAnswer({key: reason}, {"a reason": len(reason)})


def shared_reason(error: BaseException, options: SiteOptions) -> str:
    """Return why a method failed, as far as the site shares it; its own log says all."""
    if "errors" in options.share:
        return describe_error(error)
    return f"{type(error).__name__}; the log of the site says more"


class SiteRun:
    """A site in one run."""

    def __init__(
        self,
        folder: Path,
        options: SiteOptions,
        memory: SiteMemory,
        plan: DeploymentPlan,
        client: int,
    ) -> None:
        """Read the site's data for a run.

        Raises:
            ConfigError: the plan uses too few of the examples.
            DataError: the data cannot be read, are not those with which the run began, or the
                number is not one of the plan.
        """
        if client >= plan.sites and not plan.admits:
            raise wrong("client", f"a number below {plan.sites}", client)

        self.plan = plan
        self.client = client
        self.prepared = prepare(options, plan.method, memory, folder)
        labels = self.prepared.site.y[self.prepared.positions.train]
        options.policy.check_weights(plan.algorithm.training, np.bincount(labels).tolist())
        memory.answer_once("examples as inputs of models", self.prepared.digest, lambda: True)
        self.modules = readable_modules(plan.algorithm)
        self._folder = folder
        self._options = options
        self._memory = memory
        self._algorithm = plan.algorithm
        self._key_number = memory.key_number(plan.digest)

        run_states = folder / _STATES / plan.run
        if not _has_begun(run_states / _DIGEST_FILE, self.prepared.digest):
            forget_old_runs(run_states.parent)

        # A plan finds only what it has left itself: another one of the same name could have a
        # method that sends what this one keeps.
        own = run_states / f"{plan.digest}-{client}"
        self._states = SiteState(own, modules=self.modules)
        self._run_states = run_states

        # All sites before this one are empty.
        self._federation = federation_of_one(
            self.prepared.site,
            self.prepared.positions,
            plan.inputs,
            plan.task(client),
            client,
            client if plan.is_new(client) else client + 1,
        )
        common_task = self._algorithm.bind(self._federation.common_task)
        self._messages: Messages = self._algorithm.messages(common_task)
        if self._has_noise:
            check_noise(plan, self._federation.roster)
            self._messages = with_noise_on_counts(self._messages)

    @cached_property
    def masks(self) -> SiteMasks:
        """What the site does in secure sums.

        Raises:
            ConfigError: the plan has none.
            DataError: the site trusts another roster.
            RunError: a key cannot be read or written.
        """
        if not self._has_sums:
            raise ConfigError("the plan has no secure sums.", key="privacy.secure_sums")

        return SiteMasks(self._folder, self._run_states, self._options, self.plan, self.client)

    @cached_property
    def releases(self) -> SiteReleases | None:
        """What the site tells of its training examples; None: no noise hides them, or it has none.

        Raises:
            DataError: the site trusts another roster, or a file is damaged.
            RunError: a key cannot be read or written.
        """
        num_train = len(self.prepared.positions.train)
        if not self._has_noise or not num_train:
            return None

        # What the masks let pass decides, not what the plan says of sums.
        sums = (1, 1)
        if self.plan.config.privacy.noise_from == "server":
            session = self.masks.session
            sums = (session.fewest, session.fewest - session.colluding)
        return SiteReleases(
            self._folder, self._memory, self._options, self.plan, self.client, num_train, sums
        )

    def answer_about_sums(self, message: Envelope) -> SiteAnswer:
        """Answer a request about masks."""
        labels = self.prepared.site.y[self.prepared.positions.train]
        classes = np.bincount(labels, minlength=len(self.plan.inputs.class_names)) > 0
        head, blobs, what = self.masks.answer(message, classes)
        return SiteAnswer(head, {what: sum(map(len, blobs.values()))}, blobs=blobs)

    def work(self, work: Work, blobs: Mapping[str, bytes]) -> SiteAnswer:
        """Do what a request asks."""
        with one_thread():
            if isinstance(work.request, TrainRequest):
                return self._train(work, work.request, blobs)
            if isinstance(work.request, PersonalizeRequest):
                return self._personalize(work, work.request, blobs)
            return self._score(work, work.request, blobs)

    def _train(self, work: Work, request: TrainRequest, blobs: Mapping[str, bytes]) -> SiteAnswer:
        """Do a round, and keep the new state beside the one it began with."""
        # A sum that would be refused is not worth the work.
        masked = self._masked_answer(work, blobs)
        states: dict[int, Any] = {}
        shared = self._shared(blobs)
        clients = self._clients(work.base, blobs, states, self._noise_of(work, blobs))

        # With noise, another attempt sends the same again: anything else would tell more.
        asked = replace(request, attempt=0) if self._has_noise else request
        ((_, reply),) = clients.train(asked, shared, [self.client], work.round)
        if isinstance(reply, Failure):
            return self._failed(reply)

        problem = reply.problem
        upload: Upload = reply.upload
        if problem is None and self.releases is not None:
            upload = self.releases.hidden(work.round, upload)
        if problem is None and masked is not None:
            num_train = len(self.prepared.positions.train)
            problem = masked.vector.problem_with(upload, num_train)
        if problem is not None:
            text = f"the site says that its work cannot be used ({problem.kind})"
            if "errors" in self._options.share and problem.text:
                text = one_line(problem.text)
            log.error("the work of round %s cannot be used: %s", work.round, problem)
            return reason_answer("problem", text)

        self._note_accuracy(work, "local", reply.scores)

        # The server may still leave the round out, and then it names the older state again.
        clients.accept(self.client)
        version = Version(work.round, request.attempt)
        self._states.save(version, states[self.client])
        self._states.keep({version, work.base, work.best})

        out: dict[str, Any] = {"metrics": {}, "scores": ()}
        sizes: dict[str, int] = {}
        more: dict[str, bytes] = {}
        if masked is not None:
            scores = {"clients": reply.scores} if isinstance(reply.scores, Scores) else {}
            metrics = reply.metrics if self._shares("metrics") else {}
            more = self._mask(masked, upload, scores, metrics)
            sizes["upload, scores and metrics under masks"] = len(more["masked"])
        elif not self._has_sums:
            packed = pack_upload(upload, self._messages)
            out["upload"] = packed
            sizes = _sizes("upload", packed["values"])
            sizes["upload: weights and rows"] = _num_bytes((packed["weights"], packed["rows"]))

        if self._shows("metrics"):
            out["metrics"] = reply.metrics
            sizes |= _sizes("training metric", reply.metrics)
        if self._shows("scores") and isinstance(reply.scores, Scores):
            out["scores"] = reply.scores
            sizes["scores of the model after training"] = _num_bytes(reply.scores)

        return SiteAnswer({}, sizes, out, more)

    def _note_accuracy(self, work: Work, point: str, scores: object) -> None:
        """Note for the operator of the site how well a model does here, if it was scored."""
        if isinstance(scores, Scores):
            note_accuracy(self._folder, self.plan.run, work.round, point, scores)

    def _shows(self, what: str) -> bool:
        """Return whether the server sees something of this site alone."""
        return self._shares(what) and self.shows_own

    def _shares(self, what: str) -> bool:
        """Return whether something may leave, alone or in a sum.

        Training metrics follow from training examples and have no noise, which would be for nothing
        then.
        """
        return what in self._options.share and not (what == "metrics" and self._has_noise)

    @property
    def shows_own(self) -> bool:
        """Whether the server sees numbers of this site alone, and not only sums over sites."""
        return not self._has_sums or "single" in self._options.share

    @property
    def _has_sums(self) -> bool:
        return self.plan.config.privacy.secure_sums

    @property
    def _has_noise(self) -> bool:
        return self.plan.config.privacy.unit != "none"

    def _noise_of(self, work: Work, blobs: Mapping[str, bytes]) -> ExamplePlan | None:
        """Return what hides examples in the steps of a round, once it is in the ledger.

        Raises:
            DataError: the state from which the site is to continue is not there.
            RunError: the round would tell too much, or the ledger cannot be written.
        """
        if self.releases is None:
            return None

        # Other examples never get the same noise, even if nothing else of the run is left.
        data = self.prepared.digest.encode()
        state = "" if work.base is None else self._states.digest(work.base)
        origin = (data, state.encode(), blobs["shared"], blobs.get("own", b""))
        return self.releases.in_training(work.round, *origin)

    def _masked_answer(self, work: Work, blobs: Mapping[str, bytes]) -> MaskedAnswer | None:
        """Return how an answer goes into a sum; None if it does not.

        Raises:
            DataError: the sum is refused.
        """
        if not self._has_sums or "cohort" not in blobs:
            return None

        # Others would take a sum for one over this site too.
        if not self._has_something_for(work.request):
            raise DataError("this site has nothing to add to this sum.", key="cohort")

        request = work.request
        fixed: FixedPoint | None = None
        if isinstance(request, TrainRequest):
            fixed = make_fixed_point(
                self._messages,
                population=self.plan.population,
                most_examples=self.plan.config.privacy.most_examples,
                rare_classes=work.rare_classes,
            )

        vector = SumVector(self.plan, request, work.numbers, self._messages, fixed)
        asked = vector.request(work.round, _received(blobs))
        self.masks.allow(asked, blobs)
        return MaskedAnswer(vector, asked, blobs)

    def _has_something_for(self, request: Request) -> bool:
        positions = self.prepared.positions
        if isinstance(request, TrainRequest):
            return len(positions.train) > 0
        return "scores" in self._options.share and len(positions.test) + len(positions.val) > 0

    def _mask(
        self,
        masked: MaskedAnswer,
        upload: Upload,
        scores: Mapping[str, Scores],
        numbers: Mapping[str, Tensor],
    ) -> dict[str, bytes]:
        """Return the blob of what goes into a sum: an upload, and what the site shares."""
        shared = scores if "scores" in self._options.share else {}
        vector = masked.vector.encode(upload, shared, numbers).numpy()
        return {"masked": self.masks.mask(masked.request, masked.blobs, vector)}

    def _personalize(
        self, work: Work, request: PersonalizeRequest, blobs: Mapping[str, bytes]
    ) -> SiteAnswer:
        """Make the personal model, score it, and keep it here if the request says so."""
        masked = self._masked_answer(work, blobs)
        clients = self._clients(work.base, blobs, {})
        shared = self._shared(blobs)
        ((_, reply),) = clients.personalize(request, shared, [self.client], work.round)
        if isinstance(reply, Failure):
            return self._failed(reply)

        self._note_accuracy(work, "personalized", reply.scores.get("clients"))

        # The server sees the scores of the model only; the model stays.
        if request.keep and self.client in clients.personal:
            self._keep_model(clients.personal[self.client], work, reply)

        out: dict[str, Any] = {"scores": {}, "diagnostics": {}}
        if self._shows("metrics"):
            out["diagnostics"] = reply.diagnostics
        elif not self._has_sums and "steps" in reply.diagnostics:
            # The number of steps is what the method costs.
            out["diagnostics"] = {"steps": reply.diagnostics["steps"]}

        if self._shows("scores"):
            out["scores"] = dict(reply.scores)

        sizes = _sizes("diagnostic", out["diagnostics"])
        sizes |= _sizes("scores of the personal model", out["scores"])
        more: dict[str, bytes] = {}
        if masked is not None:
            more = self._mask(masked, {}, reply.scores, reply.diagnostics)
            sizes["scores of the personal model under masks"] = len(more["masked"])

        problem = reply.problem
        if problem:
            log.error("the model of round %s cannot be used: %s", work.round, problem)
            if self._has_noise:
                # It was trained without noise, so nothing is said of it.
                problem = ""
            elif "errors" in self._options.share:
                problem = one_line(problem)
            else:
                problem = "the log of the site says more"

        return SiteAnswer({"problem": problem}, sizes, out, more)

    def _score(self, work: Work, request: ScoreRequest, blobs: Mapping[str, bytes]) -> SiteAnswer:
        """Score a model of the server."""
        masked = self._masked_answer(work, blobs)
        if not self._shows("scores") and masked is None:
            message = "this site does not share scores."
            if "scores" in self._options.share:
                message = "this site shares scores under masks only."
            raise ConfigError(message, key="site.share", got="scores")

        # No state of this site is needed to score a model of the server.
        model = from_blob(blobs.get("shared", b""), self.modules)
        clients = self._clients(None, {}, {})
        ((_, reply),) = clients.score(request, model, [self.client], work.round)
        if isinstance(reply, Failure):
            return self._failed(reply)

        self._note_accuracy(work, "global", reply)
        sizes: dict[str, int] = {}
        out: dict[str, Any] = {"scores": ()}
        more: dict[str, bytes] = {}
        if self._shows("scores"):
            out["scores"] = reply
            sizes["scores of the global model"] = _num_bytes(reply)
        if masked is not None:
            more = self._mask(masked, {}, {"clients": reply}, {})
            sizes["scores of the global model under masks"] = len(more["masked"])

        return SiteAnswer({}, sizes, out, more)

    def _clients(
        self,
        base: Version | None,
        blobs: Mapping[str, bytes],
        states: dict[int, Any],
        noise: ExamplePlan | None = None,
    ) -> LocalClients:
        """Return the site as a client of a simulation, in the state that the server has named.

        Args:
            base: the version of this state.
            blobs: of the request.
            states: where the client finds its state and leaves the next one.
            noise: what hides its examples in steps of training.
        """
        per_client = {}
        if base is not None:
            states[self.client] = self._states.load(base)
        if "own" in blobs:
            per_client[self.client] = from_blob(blobs["own"], self.modules)

        values: dict[str, dict[int, Any]] = {"states": states, "per_client": per_client}
        return LocalClients(
            self._algorithm,
            self._federation,
            Reference(),
            seed=self.plan.config.seeds[0],
            storage=lambda name: values.setdefault(name, {}),
            key_number=self._key_number,
            plan=noise,
        )

    def _shared(self, blobs: Mapping[str, bytes]) -> Any:
        return unpack_download(from_blob(_received(blobs), self.modules), self._messages)

    def _keep_model(self, personal: Any, work: Work, reply: PersonalizeReply) -> None:
        """Write the personal model as a new version, and put it in use."""
        # The confidence of the model is measured where its data are.
        calibration = calibrate_client(
            self._algorithm,
            self._federation,
            self.client,
            personal,
            schedule=self.plan.config.schedule,
            classes=self.plan.inputs.names,
        )
        is_new = self.plan.is_new(self.client)
        model = ClientModel(
            personal,
            name=self._options.name,
            method=self.plan.method,
            site=self.prepared.site,
            positions=self.prepared.positions,
            number=self.client,
            new=is_new,
            round=work.round,
            participated=work.base is not None,
            scores=reply.scores["clients"],
            calibration=calibration._asdict(),
        )
        card = {}
        if not is_new and self.releases is not None:
            card = of_card({"privacy": self.releases.record()})
        version = write_version(self._folder, model, self.plan, self.prepared.digest, card)
        log.info("model: version %s is in use", version.number)

    def _failed(self, failure: Failure) -> SiteAnswer:
        log.error("the method failed: %s", describe_error(failure.reason))
        return reason_answer("failed", shared_reason(failure.reason, self._options))


def _received(blobs: Mapping[str, bytes]) -> bytes:
    """Return what all sites receive with a request."""
    if "shared" not in blobs:
        raise wrong("shared", "what all sites receive", None)
    return blobs["shared"]


def _has_begun(path: Path, digest: str) -> bool:
    """Return whether a run has begun here, with the same examples; note them if it begins now.

    Args:
        path: of the file that notes the digest of the examples.
        digest: of the examples now.

    Raises:
        DataError: the run has begun with other examples.
    """
    # The first request of a run.
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, digest + "\n")
        return False

    begun = path.read_text(encoding="ascii", errors="replace").strip()
    if begun != digest:
        message = (
            "the examples of this site are not those with which the run began. Put them back, or "
            "start a new run."
        )
        raise DataError(message, key="site.data", path=path, allowed=begun, got=digest)
    return True


def _sizes(what: str, values: Mapping[str, Any]) -> dict[str, int]:
    return {f"{what}: {name}": _num_bytes(value) for name, value in values.items()}


def _num_bytes(value: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(value))
