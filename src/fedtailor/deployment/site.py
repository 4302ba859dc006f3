"""A site: it answers the requests of a server with its own data, and keeps its data, states and
models to itself.

The programs are those of a simulation (:class:`fedtailor.simulation.clients.LocalClients`), in a
federation in which only this site has data. So a site computes the bits that the simulation
computes for the client with its number.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from fedtailor import __version__
from fedtailor.core.engine import Failure, one_thread
from fedtailor.core.errors import ConfigError, DataError, FedtailorError, RunError, describe_error
from fedtailor.core.message import Messages
from fedtailor.core.message_bytes import tree_bytes
from fedtailor.core.metrics import per_client
from fedtailor.core.scores import Scores
from fedtailor.core.tree import leaves
from fedtailor.data.column_summaries import summarize
from fedtailor.data.moments import LEAST_ROWS
from fedtailor.data.options import DataOptions
from fedtailor.deployment.audit import Audit
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import SiteOptions, load_site
from fedtailor.deployment.packing import pack_upload, unpack_download
from fedtailor.deployment.plan import PROTOCOL, Plan, other_version
from fedtailor.deployment.site_data import (
    PreparedData,
    describe_dataset,
    divide_site,
    moments,
    options_of,
    prepare,
    read_dataset,
)
from fedtailor.deployment.site_models import MadeModel, write_version
from fedtailor.deployment.state import SiteState, Version, forget_old_runs
from fedtailor.deployment.wire import Work, from_blob, read_head, refusal, to_blob, wrong
from fedtailor.experiment.config import make_config
from fedtailor.serving.one_site import federation_of_one
from fedtailor.simulation.calibration import calibrate
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.clients import LocalClients, PersonalizeReply, TrainReply
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.programs import PersonalizeRequest, ScoreRequest, TrainRequest

_STATES = "states"

log = logging.getLogger("fedtailor.site")


def open_site(folder: Path) -> Site:
    """Return the site of a folder that holds a ``site.toml``.

    Raises:
        ConfigError: the file is missing, or says something wrong.
    """
    return Site(folder, load_site(folder))


class Site:
    """One site."""

    def __init__(self, folder: Path, options: SiteOptions) -> None:
        """Use a folder, in which the site's states, models and logs are.

        Args:
            folder: of the site.
            options: what its ``site.toml`` says.
        """
        self.folder = folder
        self.options = options
        self._audit = Audit(folder)
        self._run: _SiteRun | None = None
        self._last: tuple[Envelope, Envelope] | None = None
        """The last request and its answer: a request that comes twice gets the same answer."""

    def answer(self, request: Envelope) -> Envelope:
        """Return the answer to a request; whatever the request holds is no error.

        Raises:
            RunError: the log of what leaves the site cannot be written; then nothing leaves it.
        """
        self._audit.add(
            "received", request, {name: len(blob) for name, blob in request.blobs.items()}
        )
        if self._last is not None and self._last[0] == request:
            answer = self._last[1]
            contents = {"an answer, sent again": _size(answer)}
        else:
            answer, contents = self._answer_or_refuse(request)

        answer.head.update(self._about())
        self._audit.add("sent", answer, contents)
        return answer

    def _about(self) -> dict[str, Any]:
        return {"site": self.options.name, "fedtailor": __version__, "protocol": PROTOCOL}

    def _answer_or_refuse(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        kind = request.head.get("kind")
        log.info("request: %s, round %s", kind, request.head.get("round", "-"))
        try:
            answer, contents = self._answer(request)
        except FedtailorError as error:
            log.error("refused: %s", error)
            reason = self._without_paths(error.message)
            return Envelope({"refused": reason, "kind": kind}, {}), {"a reason": len(reason)}
        except Exception as error:
            log.exception("failed")
            return Envelope(
                {**refusal(error, with_text="errors" in self.options.share), "kind": kind}, {}
            ), {}

        self._last = (request, answer)
        return answer, contents

    def _without_paths(self, text: str) -> str:
        """Return a reason for the server, without the places of this site's files, which are not
        its business.
        """
        data = options_of(self.options, DataOptions(path="each-site"), self.folder).path
        for path, name in ((data, "the data"), (str(self.folder), "the site's folder")):
            text = text.replace(f"'{path}'", name).replace(path, name)
        return text

    def _answer(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Return the answer to a request, and what is in it with the number of bytes."""
        kind = request.head.get("kind")
        if kind == "describe":
            return self._describe(request)
        if kind == "columns":
            return self._columns(request)
        if kind == "begin":
            return self._begin(request)
        return self._work(request)

    def _describe(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Say which versions run here, and what the data are like."""
        if request.head.get("protocol") != PROTOCOL:
            raise other_version("protocol", PROTOCOL, request.head.get("protocol"))
        if request.head.get("fedtailor") != __version__:
            raise other_version("fedtailor", __version__, request.head.get("fedtailor"))

        dataset = read_dataset(self.options, _data_options(request), self.folder)
        head = {
            "kind": "describe",
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "share": list(self.options.share),
            "data": describe_dataset(dataset),
        }

        return Envelope(head, {}), {"shape, classes and columns of the data": 0}

    def _columns(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Say what the columns of the table hold, from the training examples."""
        data = _data_options(request)
        seed = request.head.get("seed")
        if type(seed) is not int:
            raise wrong("seed", "a whole number", seed)

        dataset = read_dataset(self.options, data, self.folder)
        if dataset.raw is None:
            raise DataError(
                "the server asks for columns, and the data are no table.", key="site.data"
            )

        rows = divide_site(len(dataset.y), dataset.num_official_train, dataset.groups, data, seed)
        self._refuse_few(len(rows.train))
        record = summarize(dataset.x, dataset.raw, rows.train).to_record()
        return Envelope({"kind": "columns", "columns": record}, {}), {
            "medians and categories of columns": len(str(record))
        }

    def _refuse_few(self, count: int) -> None:
        if 0 < count < LEAST_ROWS:
            raise DataError(
                f"the site has {count} training examples: means and medians of fewer than {LEAST_ROWS} say too "
                "much about each of them. Give data.mean and data.std in federation.toml, or leave the site out.",
                key="site.data",
                allowed=f"{LEAST_ROWS} or more",
                got=count,
            )

    def _begin(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Say how many examples there are for a plan, and their mean and deviation if they are
        asked for.
        """
        client = request.head.get("client")
        run = self._run_of(request, client)
        prepared = run.prepared
        counts = {name: len(rows) for name, rows in prepared.rows._asdict().items()}
        head: dict[str, Any] = {"kind": "begin", "counts": counts}
        contents = {"numbers of examples": 0}

        if request.head.get("moments") is True:
            self._refuse_few(counts["train"])
            head["moments"] = moments(prepared).to_record()
            contents["mean and deviation of features"] = len(str(head["moments"]))

        return Envelope(head, {}), contents

    def _run_of(self, request: Envelope, client: Any) -> _SiteRun:
        """Return the run that a request belongs to; its plan is read once."""
        raw = request.blobs.get("plan")
        if raw is None:
            raise wrong("plan", "the plan of the run", None)
        if type(client) is not int or not 0 <= client < 10**6:
            raise wrong("client", "the number of the site", client)

        if self._run is None or self._run.plan.raw != raw or self._run.client != client:
            self._run = None
            plan = Plan.read(raw)
            if plan.fedtailor != __version__:
                raise other_version("fedtailor", __version__, plan.fedtailor)

            self._refuse_unknown(plan)
            self._run = _SiteRun(self.folder, self.options, plan, client)

        return self._run

    def _refuse_unknown(self, plan: Plan) -> None:
        """Refuse methods and models that the site has not allowed, before any code of theirs is
        imported.
        """
        chosen = {
            "algorithms": [plan.config.algorithm.name],
            "models": [plan.config.model.name, *plan.config.model.others],
        }
        for key, names in chosen.items():
            allowed: Collection[str] = getattr(self.options, key)
            for name in names:
                if name not in allowed and (allowed or ":" in name):
                    known = ", ".join(allowed) or "fedtailor's own"
                    message = f"its site.toml does not allow '{name}'. Allowed {key}: {known}."
                    raise ConfigError(message, key=f"site.{key}", allowed=list(allowed), got=name)

    def _work(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Do the work of a round."""
        work = read_head(request.head)
        run = self._run_of(request, work.client)
        if work.run != run.plan.run:
            raise wrong("run", run.plan.run, work.run)

        head = {key: request.head[key] for key in ("kind", "run", "round", "client")}
        if isinstance(work.request, TrainRequest):
            head["attempt"] = work.request.attempt

        try:
            out, contents = run.work(work, request.blobs, head)
        except FedtailorError:
            raise
        except Exception as error:  # such as too little memory: the answer names the round, so that the server need not wait
            log.exception("failed")
            reason = refusal(error, with_text="errors" in self.options.share)
            return Envelope({**head, **reason}), {"a reason": len(reason["failed"])}

        blobs = {} if out is None else {"out": to_blob(out, run.modules)}
        contents["structure of the answer"] = max(
            sum(map(len, blobs.values())) - sum(contents.values()), 0
        )

        return Envelope(head, blobs), contents


class _SiteRun:
    """A site in one run: its data as the plan wants them, and its states."""

    def __init__(self, folder: Path, options: SiteOptions, plan: Plan, client: int) -> None:
        if client >= plan.sites:
            raise wrong("client", f"a number below {plan.sites}", client)

        config = plan.config
        seed = config.seeds[0] if config.data.seed == "run" else config.data.seed
        self.folder = folder
        self.options = options
        self.plan = plan
        self.client = client
        self.algorithm = plan.algorithm
        self.modules = readable_modules(self.algorithm)
        self.prepared: PreparedData = prepare(options, config.data, plan.inputs, seed, folder)
        self._refuse_changed_data()
        task = plan.task(client)
        site = self.prepared.site
        self.federation = federation_of_one(
            site, self.prepared.rows, plan.inputs, task, client, plan.population
        )
        self.messages: Messages = self.algorithm.messages(
            self.algorithm.bind(self.federation.common_task)
        )
        self.states = SiteState(folder / _STATES / plan.run, modules=self.modules)

    def _refuse_changed_data(self) -> None:
        """Refuse to go on with other examples than those that the run began with."""
        path = self.folder / _STATES / self.plan.run / "data.sha256"
        if path.is_file():
            begun = path.read_text(encoding="ascii", errors="replace").strip()
            if begun != self.prepared.digest:
                raise DataError(
                    "the examples of this site are not those with which the run began. Put them back, or start a new "
                    "run.",
                    key="site.data",
                    path=str(path),
                    allowed=begun,
                    got=self.prepared.digest,
                )

            return

        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(self.prepared.digest + "\n", encoding="ascii")
        forget_old_runs(self.folder / _STATES)

    def _clients(
        self, base: Version | None, blobs: Mapping[str, bytes]
    ) -> tuple[LocalClients, dict[int, Any]]:
        """Return the site as a client of a simulation, in the state from which the server wants it
        to go on.
        """
        kept: dict[str, dict[int, Any]] = {
            "states": {},
            "per_client": {},
            "personal": {},
            "trained": {},
        }
        if base is not None:
            kept["states"][self.client] = self.states.load(base)
        if "own" in blobs:
            kept["per_client"][self.client] = from_blob(blobs["own"], self.modules)

        seed = self.plan.config.seeds[0]
        clients = LocalClients(
            self.algorithm, self.federation, Reference(), seed=seed, storage=kept.__getitem__
        )

        return clients, kept["states"]

    def _shared(self, blobs: Mapping[str, bytes]) -> Any:
        if "shared" not in blobs:
            raise wrong("shared", "what all sites receive", None)
        return unpack_download(from_blob(blobs["shared"], self.modules), self.messages)

    def work(
        self, work: Work, blobs: Mapping[str, bytes], head: dict[str, Any]
    ) -> tuple[Any, dict[str, int]]:
        """Do what a request asks; return the answer, and what is in it with the number of bytes."""
        with one_thread():
            if isinstance(work.request, TrainRequest):
                return self.train(work, work.request, blobs, head)
            if isinstance(work.request, PersonalizeRequest):
                return self.personalize(work, work.request, blobs, head)
            return self.score(work, work.request, blobs)

    def train(
        self, work: Work, request: TrainRequest, blobs: Mapping[str, bytes], head: dict[str, Any]
    ) -> tuple[Any, dict[str, int]]:
        """Do a round, and keep the new state beside the one it began with."""
        shared = self._shared(blobs)
        clients, states = self._clients(work.base, blobs)
        reply = cast(
            TrainReply | Failure, _only(clients.train(request, shared, [self.client], work.round))
        )

        if isinstance(reply, Failure):
            head["failed"] = self._reason(reply)
            return None, {}

        if reply.problem is not None:
            head["problem"] = (
                list(reply.problem)
                if "errors" in self.options.share
                else [reply.problem.kind, "", ""]
            )

            return None, {}

        clients.accept(self.client)
        version = Version(work.round, request.attempt)
        self.states.save(version, states[self.client])
        self.states.keep([version, *work.keep, *([work.base] if work.base is not None else [])])
        upload = pack_upload(reply.upload, self.messages)
        out: dict[str, Any] = {"upload": upload, "metrics": {}, "scores": ()}
        contents = {f"upload: {name}": tree_bytes(part) for name, part in upload["values"].items()}
        contents["upload: weights and rows"] = tree_bytes((upload["weights"], upload["rows"]))

        if "metrics" in self.options.share:
            out["metrics"] = reply.metrics
            contents |= {f"training metric: {name}": 8 for name in reply.metrics}

        if "scores" in self.options.share and isinstance(reply.scores, Scores):
            out["scores"] = reply.scores
            contents["scores of the model after training"] = _numbers(reply.scores)

        return out, contents

    def personalize(
        self,
        work: Work,
        request: PersonalizeRequest,
        blobs: Mapping[str, bytes],
        head: dict[str, Any],
    ) -> tuple[Any, dict[str, int]]:
        """Make the personal model, score it, and keep it here if the request says so."""
        shared = self._shared(blobs)
        clients, _ = self._clients(work.base, blobs)
        reply = cast(
            PersonalizeReply | Failure,
            _only(clients.personalize(request, shared, [self.client], work.round)),
        )

        if isinstance(reply, Failure):
            head["failed"] = self._reason(reply)
            return None, {}

        if request.keep and self.client in clients.personal:
            self._keep_model(clients.personal[self.client], work, reply)

        head["problem"] = reply.problem
        out: dict[str, Any] = {"scores": {}, "diagnostics": {}}
        contents: dict[str, int] = {}
        if "metrics" in self.options.share:
            out["diagnostics"] = reply.diagnostics
            contents |= {f"diagnostic: {name}": 8 for name in reply.diagnostics}
        elif "steps" in reply.diagnostics:
            out["diagnostics"] = {"steps": reply.diagnostics["steps"]}

        if "scores" in self.options.share:
            out["scores"] = dict(reply.scores)
            for name, scores in reply.scores.items():
                contents[f"scores of the personal model ({name})"] = _numbers(scores)

        return out, contents

    def score(
        self, work: Work, request: ScoreRequest, blobs: Mapping[str, bytes]
    ) -> tuple[Any, dict[str, int]]:
        """Score a model of the server."""
        if "scores" not in self.options.share:
            raise ConfigError("this site does not share scores.", key="site.share", got="scores")

        clients, _ = self._clients(None, {})
        model = from_blob(blobs.get("shared", b""), self.modules)
        reply = cast(
            Scores | Failure, _only(clients.score(request, model, [self.client], work.round))
        )
        if isinstance(reply, Failure):
            raise RunError(f"the model could not be scored: {self._reason(reply)}")

        return {"scores": reply}, {"scores of the global model": _numbers(reply)}

    def _keep_model(self, personal: Any, work: Work, reply: PersonalizeReply) -> None:
        """Write the personal model as a new version, and put it in use."""
        task = self.algorithm.bind(self.federation.task(self.client))
        calibration = calibrate(
            self.algorithm, task, personal, self.federation.data(self.client).val
        )
        made = MadeModel(
            personal,
            name=self.options.name,
            plan=self.plan,
            prepared=self.prepared,
            number=self.client,
            round=work.round,
            participated=work.base is not None,
            scores=per_client(reply.scores["clients"]),
            calibration=calibration._asdict(),
        )
        version = write_version(self.folder, made)
        log.info("model: version %s is in use", version.number)

    def _reason(self, failure: Failure) -> str:
        """Return why the program failed, as far as the site shares it; its own log says all."""
        log.error("the method failed: %s", describe_error(failure.reason))
        if "errors" in self.options.share:
            return describe_error(failure.reason)
        return f"{type(failure.reason).__name__}; the log of the site says more"


def _only(replies: Iterator[tuple[int, Any]]) -> Any:
    """Return the reply of the only client."""
    ((_, reply),) = replies
    return reply


def _data_options(request: Envelope) -> DataOptions:
    """Return the ``[data]`` section of a request.

    Raises:
        ConfigError: it is wrong.
    """
    section = request.head.get("data")
    if not isinstance(section, Mapping):
        raise wrong("data", "a section of options", section)
    return make_config({"data": dict(section)}).data


def _numbers(value: Any) -> int:
    """Return the bytes of the numbers of a tree."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(value))


def _size(envelope: Envelope) -> int:
    return sum(map(len, envelope.blobs.values()))
