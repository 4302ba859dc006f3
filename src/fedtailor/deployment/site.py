"""A site: it answers the requests of a server, and keeps its data, states and models to itself."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor import __version__
from fedtailor.core.devices import HOST, refuse_missing_bfloat16
from fedtailor.core.errors import (
    WARNING,
    ConfigError,
    DataError,
    FedtailorError,
    describe_error,
    one_line,
)
from fedtailor.data.column_summaries import summarize
from fedtailor.data.dataset import Dataset
from fedtailor.data.encoding import encode_like
from fedtailor.data.moments import LEAST_ROWS, moments_of
from fedtailor.data.options import DataOptions
from fedtailor.data.quantiles import count_cells, read_request
from fedtailor.deployment.audit import Audit, digest_of
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.limits import MOST_SITES
from fedtailor.deployment.mask_kinds import KINDS
from fedtailor.deployment.options import SiteOptions, load_site
from fedtailor.deployment.plan import DeploymentPlan, other_version, read_plan
from fedtailor.deployment.policy import SENT_AGAIN, study_settings
from fedtailor.deployment.shared_verdicts import SHARE, verdict_of
from fedtailor.deployment.site_data import (
    describe_dataset,
    divide_site,
    embed_dataset,
    options_of,
    read_dataset,
)
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.deployment.site_run import SiteAnswer, SiteRun, reason_answer, shared_reason
from fedtailor.deployment.site_verdict import add_verdict
from fedtailor.deployment.wire import read_head, refusal_in, repeated, to_blob, whole, wrong
from fedtailor.experiment.config import make_config
from fedtailor.simulation.programs import PersonalizeRequest

_IN_THE_DATA = "data.path"
"""Key of errors about what single cells or files of the data hold, and how files are called."""
_SPARE_WAYS = 2
"""Ways to read cells that a server may try beside those that it has a purpose for."""

log = logging.getLogger("fedtailor.site")


class DeployedSite:
    """One site: a folder with a ``site.toml``, its data, states, models and log."""

    def __init__(self, folder: Path) -> None:
        """Read ``site.toml``, and what the site has answered before.

        Raises:
            ConfigError: the file is missing, or says something wrong.
            DataError: the file of answers is damaged.
        """
        self.folder = folder
        self.options: SiteOptions = load_site(folder)
        self._audit = Audit(folder)
        self._memory = SiteMemory(folder, self.options.policy)
        self._run: SiteRun | None = None
        self._last: tuple[Envelope, Envelope] | None = None
        """The last request and its answer: a request that comes twice gets the same answer."""
        self._is_judged = False
        """Whether nothing is left to do for :meth:`judge`."""

    def answer(self, request: Envelope) -> Envelope:
        """Return the answer to a request; any request is accepted, if only to be refused.

        Raises:
            RunError: the log of what leaves the site cannot be written; then nothing leaves it.
        """
        sizes = {name: len(blob) for name, blob in request.blobs.items()}
        plan = digest_of(request.blobs["plan"]) if "plan" in request.blobs else ""
        self._audit.add("received", request, sizes, plan=plan)
        if self._last is not None and self._last[0] == request:
            answer = self._last[1]
            sizes = {SENT_AGAIN: sum(map(len, answer.blobs.values()))}
        else:
            answer, sizes = self._answer_or_refuse(request)

        self._audit.add("sent", answer, sizes, plan=plan, refused=refusal_in(answer.head) or "")
        return answer

    def judge(self) -> None:
        """Compare the newest model with what the site would use alone, if that was not done yet.

        It is done between requests: training the baselines can take a while. Nothing is sent.
        """
        if self._is_judged:
            return

        # Whatever happens, it is tried once for each model, and once after a start.
        self._is_judged = True
        try:
            sentence = add_verdict(self.folder, self.options, self._memory, self._run)
        except Exception as error:
            log.error("no verdict: %s", describe_error(error))
        else:
            if sentence:
                log.info("%s", sentence)

    def _answer_or_refuse(self, request: Envelope) -> tuple[Envelope, dict[str, int]]:
        """Return an answer, and what is in it with the number of bytes."""
        # Nothing has checked what the server says: it must not write lines of its own.
        kind = one_line(f"{request.head.get('kind')!s:.40}")
        round = one_line(f"{request.head.get('round', '-')!s:.20}")
        log.info("request: %s, round %s", kind, round)
        try:
            envelope, sizes = self._to_envelope(request, self._answer(request))
            self._last = (request, envelope)
            return envelope, sizes
        except FedtailorError as error:
            log.error("refused: %s", error)
            refusal = reason_answer("refused", one_line(self._told(error)))
        except Exception as error:  # such as too little memory
            log.exception("failed")
            refusal = reason_answer("failed", shared_reason(error, self.options))

        # It is not kept: the next request of this kind may find the cause removed.
        return self._to_envelope(request, refusal)

    def _to_envelope(
        self, request: Envelope, answer: SiteAnswer
    ) -> tuple[Envelope, dict[str, int]]:
        head = {**repeated(request.head), "site": self.options.name, **answer.head}

        # Without a tree of tensors, head and other blobs say all.
        if answer.out is None or self._run is None:
            return Envelope(head, answer.blobs), answer.sizes

        blob = to_blob(answer.out, self._run.modules)
        structure = max(len(blob) - sum(answer.sizes.values()), 0)
        sizes = {**answer.sizes, "structure of the answer": structure}
        return Envelope(head, {"out": blob, **answer.blobs}), sizes

    def _told(self, error: FedtailorError) -> str:
        """Return a reason without the places of this site's files, which stay its own business.

        What is wrong with single cells or files says what they hold, so the server may not know.
        """
        if error.key == _IN_THE_DATA and "errors" not in self.options.share:
            return "its data cannot be read in this way; the log of the site says more."

        text = error.message
        data = options_of(self.options, DataOptions(path="each-site"), self.folder).path
        for path, name in ((data, "the data"), (str(self.folder), "the site's folder")):
            text = text.replace(f"'{path}'", name).replace(path, name)
        return text

    def _answer(self, request: Envelope) -> SiteAnswer:
        kind = request.head.get("kind")
        if kind == "describe":
            return self._describe(request.head)
        if kind == "columns":
            return self._columns(request.head)
        if kind == "quantiles":
            return self._quantiles(request.head)
        if kind == "begin":
            return self._begin(request)
        if kind == SHARE:
            return self._verdict(request.head)
        if kind in KINDS:
            run = self._run_of(request, request.head.get("client"))
            return run.answer_about_sums(request)
        return self._work(request)

    def _verdict(self, head: Mapping[str, Any]) -> SiteAnswer:
        """Say what the site has found of its own model."""
        if SHARE not in self.options.share:
            raise ConfigError("this site does not share its verdict.", key="site.share", got=SHARE)

        self.judge()
        verdict = verdict_of(self.folder, str(head.get("run")))
        return SiteAnswer({SHARE: verdict}, {"verdict of the site": len(str(verdict))})

    def _describe(self, head: Mapping[str, Any]) -> SiteAnswer:
        """Say which versions run here, and what the data are like."""
        # The version comes first: options of another one would be refused for the wrong reason.
        version = head.get("fedtailor")
        if version != __version__:
            raise other_version(version)

        data = _data_options(head)
        if data.encoder:
            self._refuse_names("encoders", [data.encoder])

        dataset = read_dataset(self.options, self._reading(data), self.folder)
        if data.encoder:
            dataset = embed_dataset(dataset, data, str(head.get("encoder")))

        for note in dataset.notes:
            if note.startswith(WARNING):
                log.warning("%s", note)

        answer = {
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "share": list(self.options.share),
            "data": describe_dataset(dataset),
        }
        return SiteAnswer(answer, {"shape, classes and columns of the data": 0})

    def _columns(self, head: Mapping[str, Any]) -> SiteAnswer:
        """Say what the columns of the table hold, from the training examples."""
        data = self._reading(_data_options(head))

        def summary() -> dict[str, Any]:
            dataset, positions = self._training_examples(data)
            assert dataset.raw is not None
            return summarize(dataset.x, dataset.raw, positions).to_record()

        record = self._memory.answer_once("columns", _way_to_read(data), summary)
        sizes = {"medians and categories of columns": len(str(record))}
        return SiteAnswer({"columns": record}, sizes)

    def _quantiles(self, head: Mapping[str, Any]) -> SiteAnswer:
        """Say how many training cells of columns of numbers lie in some intervals."""
        self.options.policy.check_counts()
        exchange, request = read_request(head.get("exchange"), head.get("columns"))
        data = self._reading(_data_options(head))

        def counts() -> dict[str, Any]:
            dataset, positions = self._training_examples(data)
            assert dataset.raw is not None
            cells = count_cells(dataset.x, dataset.raw, positions, exchange, request)
            return {name: column.to_record() for name, column in cells.items()}

        kind = f"counts of columns, exchange {exchange}"
        record = self._memory.answer_once(kind, [_way_to_read(data), request], counts)
        sizes = {"counts of intervals of columns": len(str(record))}
        return SiteAnswer({"counts": record}, sizes)

    def _reading(self, data: DataOptions) -> DataOptions:
        """Return ``[data]`` if its way to read cells is one of few.

        Whether cells can be read in a way tells something of them: which values are there, if
        certain ones are declared missing and missing ones are refused.

        Raises:
            DataError: other ways have been tried.
        """
        way = _way_to_read(data)
        self._memory.answer_once("ways to read cells", way, lambda: True, spare=_SPARE_WAYS)
        return data

    def _training_examples(self, data: DataOptions) -> tuple[Dataset, np.ndarray]:
        """Return the table of the site for answers about its columns, and what it trains on.

        A column with few cells with a value is empty in it, because an answer would tell them.

        Raises:
            DataError: the data are not a table, or there are too few rows.
        """
        dataset = read_dataset(self.options, data, self.folder)
        if dataset.raw is None:
            message = "the server asks for columns, and the data are not a table."
            raise DataError(message, key="site.data")

        count = len(dataset.y)
        positions = divide_site(
            self._memory, data, count, dataset.num_official_train, dataset.groups
        )
        _refuse_few(len(positions.train))

        # A column may have far fewer values than there are examples.
        columns = summarize(dataset.x, dataset.raw, positions.train).columns
        few = [index for index, column in enumerate(columns) if 0 < column.count < LEAST_ROWS]
        if few:
            names = ", ".join(repr(columns[index].name) for index in few)
            log.warning(
                "columns with fewer than %s values are answered as empty: %s", LEAST_ROWS, names
            )
            x = dataset.x.copy()
            x[:, few] = np.nan
            dataset = replace(dataset, x=x)

        return dataset, positions.train

    def _begin(self, request: Envelope) -> SiteAnswer:
        """Say how many examples there are, and their mean and deviation if these are asked for."""
        run = self._run_of(request, request.head.get("client"))
        prepared = run.prepared
        counts = {name: len(part) for name, part in prepared.positions._asdict().items()}
        counts["test_groups"] = prepared.positions.num_test_groups(prepared.site.groups)
        head: dict[str, Any] = {"counts": counts}
        sizes = {"numbers of examples and of groups": 0}
        if not run.shows_own:
            # A round loop must know who can train, and a sum hides the rest.
            head["counts"] = {name: min(count, 1) for name, count in counts.items()}
            sizes = {"which parts have examples": 0}

        # Asked only if no mean is known: then it becomes that of the examples of all sites.
        if request.head.get("moments") is True:
            _refuse_idle_moments(run.plan)

            def moments() -> dict[str, Any]:
                _refuse_few(counts["train"])
                x = prepared.site.x
                if run.plan.inputs.columns is not None:
                    dataset, _ = self._training_examples(run.plan.config.data)
                    x = encode_like(dataset, run.plan.inputs.columns)
                return moments_of(x, prepared.positions.train).to_record()

            head["moments"] = self._memory.answer_once("means", prepared.digest, moments)
            sizes["mean and deviation of features"] = len(str(head["moments"]))

        return SiteAnswer(head, sizes)

    def _work(self, request: Envelope) -> SiteAnswer:
        """Do the work of a round."""
        work = read_head(request.head)
        run = self._run_of(request, work.client)
        if work.run != run.plan.run:
            raise wrong("run", run.plan.run, work.run)

        # The work may leave a model.
        self._is_judged = self._is_judged and not isinstance(work.request, PersonalizeRequest)
        return run.work(work, request.blobs)

    def _run_of(self, request: Envelope, client: Any) -> SiteRun:
        """Return the run that a request belongs to; its plan is read once."""
        raw = request.blobs.get("plan")
        if raw is None:
            raise wrong("plan", "the plan of the run", None)

        whole("client", client, MOST_SITES)
        kind = str(request.head.get("kind"))
        self._audit.tally.check(self.options.policy, kind, digest_of(raw))

        # Data and model stay in memory from request to request of a run.
        run = self._run
        if run is None or run.plan.raw != raw or run.client != client:
            self._run = None
            plan = read_plan(raw)
            self._refuse_unknown(plan)
            self._refuse_against_policy(plan, client)
            run = self._run = SiteRun(self.folder, self.options, self._memory, plan, client)

        return run

    def _refuse_unknown(self, plan: DeploymentPlan) -> None:
        """Refuse what the site does not allow, before any code of a method or model is imported."""
        config = plan.config
        self._refuse_names("algorithms", [config.algorithm.name])
        self._refuse_names("models", [config.model.name, *config.model.others])
        if plan.inputs.encoder is not None:
            self._refuse_names("encoders", [plan.inputs.encoder.target])

    def _refuse_names(self, key: str, names: Sequence[str]) -> None:
        """Refuse names that a list in ``site.toml`` does not allow."""
        allowed: Collection[str] = getattr(self.options, key)
        for name in names:
            # An empty list allows what comes with fedtailor, whose names have no colon.
            if name not in allowed and (allowed or ":" in name):
                listed = ", ".join(allowed) or ("none" if key == "encoders" else "fedtailor's own")
                message = f"its site.toml does not allow '{name}'. Allowed {key}: {listed}."
                raise ConfigError(message, key=f"site.{key}", allowed=list(allowed), got=name)

    def _refuse_against_policy(self, plan: DeploymentPlan, client: int) -> None:
        """Refuse a plan outside of ``[policy]`` or ``[privacy]``, before any data are read."""
        trains = not plan.is_new(client)
        self.options.privacy.check_plan(plan.config.privacy, plan.population, trains=trains)
        policy = self.options.policy
        policy.check_study(study_settings(plan.config))
        algorithm = plan.algorithm
        policy.check_training(algorithm)
        refuse_missing_bfloat16(algorithm.training.precision, HOST)
        policy.check_messages(algorithm.messages(algorithm.bind(plan.task(0))))
        policy.check_columns(plan.inputs.columns)

        # Last, because the site remembers in which ways it was asked to read cells.
        rules = self._reading(plan.config.data).cell_rules
        if plan.inputs.cells != rules:
            raise wrong("inputs.cells", "the rules of the section data", "others")


def _way_to_read(data: DataOptions) -> dict[str, Any]:
    """Return what of ``[data]`` decides what the cells of a table are."""
    return {
        "missing": data.missing,
        "decimal": data.decimal,
        "values": data.missing_values,
        "leave_out": list(data.leave_out),
    }


def _refuse_few(count: int) -> None:
    """Refuse to describe few training examples, because that would describe each of them."""
    if 0 < count < LEAST_ROWS:
        message = (
            f"the site has fewer than {LEAST_ROWS} training examples: means and medians would say "
            "too much about each of them. Leave the site out, or, of arrays and pictures, give "
            "data.mean and data.std in federation.toml."
        )
        raise DataError(message, key="site.data", allowed=f"{LEAST_ROWS} or more", got="fewer")


def _data_options(head: Mapping[str, Any]) -> DataOptions:
    """Return the ``[data]`` section of a request.

    Raises:
        ConfigError: it is wrong.
    """
    section = head.get("data")
    if not isinstance(section, Mapping):
        raise wrong("data", "a section of options", section)
    return make_config({"data": dict(section)}).data


def _refuse_idle_moments(plan: DeploymentPlan) -> None:
    """Check that a plan needs the means of all examples: neither noise nor masks hide them.

    Raises:
        DataError: it does not.
    """
    is_embedded = plan.inputs.encoder is not None
    if not plan.config.data.standardizes(plan.inputs.kind, is_embedded=is_embedded):
        message = "the server asks for means of the examples, which its plan does not use."
        raise DataError(message, key="moments", allowed="false", got="true")
