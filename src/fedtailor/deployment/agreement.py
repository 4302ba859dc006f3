"""The agreement before the first round: what the sites say, and the plan that is made of it.

No example leaves a site for it. Names of classes do, and names of columns, categories, medians,
counts of intervals, means and deviations of tables; ``fedtailor site leaves`` counts them.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import __version__
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.federation import Roster
from fedtailor.core.task import Task
from fedtailor.core.text import quoted, sorted_classes
from fedtailor.data.build import refuse_knots_without_columns
from fedtailor.data.column_summaries import ColumnSummaries, merge_summaries
from fedtailor.data.columns import Columns
from fedtailor.data.input_specification import InputSpecification, encoder_of
from fedtailor.data.moments import ColumnMoments, merge_moments, normalization_of
from fedtailor.data.own.sites import FEW
from fedtailor.data.quantiles import Counts, Request, read_counts, with_knots
from fedtailor.data.tensors import refuse_rows_without_features
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange
from fedtailor.deployment.federation_folder import Registered
from fedtailor.deployment.limits import LARGEST_SHAPE, MOST_AXES, MOST_CLASSES, MOST_EXAMPLES
from fedtailor.deployment.membership import Member
from fedtailor.deployment.options import SHARED, DeployOptions, FederationFile
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.wire import refusal_in, whole, wrong
from fedtailor.encoders.load import load_encoder
from fedtailor.experiment.assembly import (
    make_algorithm,
    refuse_impossible_augmentation,
    refuse_private_normalization,
    resolved,
)
from fedtailor.experiment.config import Config
from fedtailor.models import build_model, default_model

_SAME = ("kind", "shape", "stored", "white", "mean", "std")
"""What a site says of its data that must be equal at all sites."""
_LISTS = ("classes", "columns")
"""What it says as lists of names; tables alone have columns."""
_HINTS = {"shape": " For pictures, set data.image_size and data.color in federation.toml."}
_LONGEST_WORD = 80
_LONGEST_VALUE = 200
_LONGEST_TEXT = 10_000
"""Characters of the license of an encoder."""


class SiteLeftError(Exception):
    """A site was paused or removed before all had agreed."""


class Agreement(NamedTuple):
    """What the server and all sites have agreed on."""

    plan: DeploymentPlan
    members: list[Member]
    """By number."""

    def roster(self) -> Roster:
        """Return who there is."""
        plan = self.plan

        # Only where sites train models of their own, tasks differ.
        has_other_models = bool(plan.config.model.others)
        clients = range(len(self.members)) if has_other_models else ()
        return Roster(
            common_task=_unbound(plan.task(0)),
            num_train=[member.num_train for member in self.members],
            num_new=plan.new_sites,
            names=[member.name for member in self.members],
            client_tasks=[_unbound(plan.task(client)) for client in clients],
            validates=any(member.num_val for member in self.members),
            num_test=[member.num_test for member in self.members],
            test_groups=[member.test_groups for member in self.members],
            class_names=plan.inputs.class_names,
        )

    def notes(self) -> list[str]:
        """Return sentences about small sites, and about the promise of equal bits."""
        notes = []
        for member in self.members:
            examples = member.num_train + member.num_val + member.num_test
            if member.counts_known and examples < FEW:
                message = f"site '{member.name}' has {examples} examples, fewer than {FEW}: its "
                notes.append(f"{message}scores say nothing by themselves.")

        # Another build may add numbers in another order.
        builds = {f"torch {member.torch}, {member.capability}" for member in self.members}
        builds.add(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
        if len(builds) < 2:
            return notes

        return [
            *notes,
            "the sites and the server do not all have the same build of torch and kind of "
            f"processor ({'; '.join(sorted(builds))}): the last bits of results depend on who "
            "computed them.",
        ]


def agree(exchange: Exchange, file: FederationFile, sites: Sequence[Registered]) -> Agreement:
    """Ask all sites, and make the plan.

    Args:
        exchange: with the sites.
        file: what ``federation.toml`` says.
        sites: by number; new ones come last.

    Raises:
        ConfigError: the configuration does not fit the data.
        DataError: the sites do not fit together; the message names two of them and both values.
        RunError: a site refuses.
        SiteLeftError: a site was paused or removed meanwhile.
    """
    questions = _Questions(exchange, [site.name for site in sites], len(sites))
    descriptions = _describe(questions, file)
    data = [description["data"] for description in descriptions]
    config = _with_test_policy(file.config, questions.names, data)
    training = [client for client, site in enumerate(sites) if not site.new]

    # How examples become inputs of the model.
    columns = None
    if data[0]["columns"] is None:
        refuse_knots_without_columns(config.data.numbers)
    else:
        columns = _agree_on_columns(questions, training, config)
    classes = file.deploy.classes or merge_classes([site["classes"] for site in data])
    if len(classes) < 2:
        message = f"all examples of all sites are of class {quoted(classes[0])}; at least two "
        raise DataError(f"{message}classes are needed.", key="data", allowed=">= 2", got=1)

    inputs = _inputs(config, data[0], classes, columns)
    plan = _plan(config, inputs, sites)

    # With the plan, sites count their examples, and say their means if these are needed.
    is_embedded = inputs.encoder is not None
    standardizes = config.data.standardizes(inputs.kind, is_embedded=is_embedded)
    counts = questions.ask("begin", {"moments": standardizes}, plan=plan)

    # The mean can depend on the examples of all sites, as in a simulation.
    if standardizes:
        records = {questions.names[client]: counts[client].get("moments") for client in training}
        inputs = _standardized(inputs, records)
    plan = dataclasses.replace(plan, inputs=inputs)
    return _agreement(plan, config, sites, descriptions, counts)


def agree_to_continue(
    exchange: Exchange, file: FederationFile, sites: Sequence[Registered], before: DeploymentPlan
) -> Agreement:
    """Ask all sites, and make the plan of a run that continues another one.

    Examples become inputs of the model as they did there.

    Args:
        exchange: with the sites.
        file: what ``federation.toml`` says; data, model and method are those of ``before``.
        sites: by number; new ones come last.
        before: the plan of the run that has finished.

    Raises:
        ConfigError: the configuration does not fit the data.
        DataError: a site has another version of torch, or no site has a training example.
        RunError: a site refuses, as where its data do not fit the model.
        SiteLeftError: a site was paused or removed meanwhile.
    """
    config = dataclasses.replace(
        file.config,
        data=before.config.data,
        model=before.config.model,
        algorithm=before.config.algorithm,
    )
    plan = dataclasses.replace(
        _plan(config, before.inputs, sites), lineage=(*before.lineage, before.run)
    )

    questions = _Questions(exchange, [site.name for site in sites], len(sites))
    descriptions = questions.ask("describe", _about_data(plan))
    counts = questions.ask("begin", {"moments": False}, plan=plan)
    return _agreement(plan, config, sites, descriptions, counts)


def _about_data(plan: DeploymentPlan) -> dict[str, Any]:
    """Return the question what the data of a site are like, once there is a plan."""
    question: dict[str, Any] = {"data": dataclasses.asdict(plan.config.data)}
    if plan.inputs.encoder is not None:
        question["encoder"] = plan.inputs.encoder.digest
    return question


def _agreement(
    plan: DeploymentPlan,
    config: Config,
    sites: Sequence[Registered],
    descriptions: Sequence[Mapping[str, Any]],
    counts: Sequence[Mapping[str, Any]],
) -> Agreement:
    """Return what was agreed on, from the answers of all sites to both questions.

    Args:
        plan: made before the sites have said how many examples they have.
        config: of the run, in which ``auto`` may still stand.
        sites: by number.
        descriptions: what their data are like.
        counts: how many examples they have.

    Raises:
        ConfigError: validation examples are to decide, and no site has one.
        DataError: an answer is wrong, or a run cannot begin with these sites.
    """
    has_sums = plan.config.privacy.secure_sums
    members = []
    for site, described, counted in zip(sites, descriptions, counts, strict=True):
        with _said_by(site.name):
            members.append(_member(site, described, counted, has_sums=has_sums))

    # When models are evaluated can depend on the numbers of examples.
    roster = Agreement(plan, members).roster()
    name = plan.config.model.name
    config = resolved(config, plan.algorithm, model_name=name, roster=roster)
    agreement = Agreement(dataclasses.replace(plan, config=config), members)
    _check_agreement(agreement)
    return agreement


def ask_to_join(exchange: Exchange, agreement: Agreement, site: Registered) -> Member | None:
    """Ask a site whether it can join a run under way, and return what it says of itself.

    It must take its examples as the plan says: classes, columns, mean and deviation stay as they
    were agreed on.

    Args:
        exchange: with the sites of the run, and this one after them.
        agreement: of the sites of the run.
        site: as it is registered.

    Returns:
        None if it does not answer in time.

    Raises:
        DataError: it does not fit, or says what cannot be.
        RunError: it refuses, as where its data do not fit the model.
    """
    plan = agreement.plan
    questions = _Questions(exchange, [site.name], needed=0, first=len(agreement.members))
    try:
        (described,) = questions.ask("describe", _about_data(plan))
        (counted,) = questions.ask("begin", {"moments": False}, plan=plan)
    except SiteLeftError:
        return None

    member = _member(site, described, counted, has_sums=False)
    if plan.config.schedule.watches_validation:
        _refuse_hidden_scores([member])
    return member


def merge_classes(sites: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the names of all classes that sites have: numbers in their order, else sorted as text.

    If all sites have the same names, their order stays.

    Example:
        >>> merge_classes([["2", "10"], ["1", "2"]])
        ('1', '2', '10')
    """
    # An order that all sites have may mean something.
    if all(list(names) == list(sites[0]) for names in sites):
        return tuple(sites[0])

    names = {name for site in sites for name in site}
    if len(names) > MOST_CLASSES:
        message = f"the sites have {len(names)} classes together, more than {MOST_CLASSES}."
        raise DataError(message, key="data.classes", allowed=MOST_CLASSES, got=len(names))
    return tuple(sorted_classes(names))


class _Questions(NamedTuple):
    """Asks sites something before their first round."""

    exchange: Exchange
    names: Sequence[str]
    """Of the sites, by number."""
    needed: int
    """Answers that are waited for, however long that takes."""
    first: int = 0
    """Number of the first site."""

    def ask(
        self,
        kind: str,
        question: Mapping[str, Any],
        *,
        plan: DeploymentPlan | None = None,
        check: Callable[[int, Mapping[str, Any]], None] = lambda client, head: None,
    ) -> list[dict[str, Any]]:
        """Return the heads of the answers of all sites.

        Raises:
            DataError: a site calls itself by another name than its registered one, or has another
                version of torch.
            RunError: a site refuses; as soon as it does.
            SiteLeftError: a site was paused or removed meanwhile, or was not waited for.
        """
        head = {"kind": kind, "fedtailor": __version__, **question}
        blobs = {} if plan is None else {"plan": plan.raw}
        clients = range(self.first, self.first + len(self.names))
        requests = {client: Envelope({**head, "client": client}, blobs) for client in clients}
        heads: dict[int, dict[str, Any]] = {}

        def accept(client: int, answer: Envelope) -> bool:
            if answer.head.get("kind") != kind:
                return False

            name = self.names[client - self.first]
            _refuse_refusal(name, answer.head)
            if kind == "describe":
                _check_torch(name, answer.head, self.exchange.options)
            check(client, answer.head)
            heads[client] = answer.head
            return True

        self.exchange.ask(requests, needed=self.needed, accept=accept)
        if len(heads) < len(requests):
            raise SiteLeftError
        return [heads[client] for client in clients]


def _refuse_refusal(name: str, head: Mapping[str, Any]) -> None:
    """Refuse a site that refuses, or that calls itself by another name than its registered one."""
    reason = refusal_in(head)
    if reason is not None:
        message = f"site '{name}' refuses: {reason.rstrip('.')}."
        hint = " To begin without it: fedtailor deploy pause."
        raise RunError(message + hint, key="site", got=name)

    claimed = _word(head.get("site"))
    if claimed != name:
        message = f"the site that is registered as '{name}' calls itself '{claimed}'."
        hint = (
            f" If '{name}' is wrong, remove it and register the site as '{claimed}', with a new "
            "key; otherwise correct its site.toml."
        )
        raise DataError(message + hint, key="site.name", allowed=name, got=claimed)


def _describe(questions: _Questions, file: FederationFile) -> list[dict[str, Any]]:
    """Return the first answers of all sites, in which each describes its data.

    Sites that do not fit together are refused as soon as two have answered.
    """
    names = questions.names
    first: list[tuple[str, Mapping[str, Any]]] = []

    def check(client: int, head: Mapping[str, Any]) -> None:
        with _said_by(names[client]):
            _check_description(head.get("data"))
        first.append((names[client], head["data"]))

        # By name: the message must not depend on who answered first.
        one, other = sorted((first[0], first[-1]), key=lambda answer: answer[0])
        _check_alike(one, other)

    data = file.config.data
    question: dict[str, Any] = {"data": dataclasses.asdict(data)}
    if data.encoder:
        question["encoder"] = load_encoder(data.encoder).digest

    return questions.ask("describe", question, check=check)


def _check_torch(name: str, head: Mapping[str, Any], deploy: DeployOptions) -> None:
    """Check that a site computes the bits of the server; it has compared the other versions."""
    here = torch.__version__
    there = _word(head.get("torch"))
    if there != here and not deploy.allow_mixed:
        message = f"site '{name}' has torch {there}, and the server has {here}."
        hint = " Set deploy.allow_mixed to continue without equal bits."
        raise DataError(message + hint, key="torch", allowed=here, got=there)


@contextmanager
def _said_by(name: str) -> Iterator[None]:
    """Name the site whose answer is wrong: only without it can a run begin.

    Raises:
        DataError: the one that was raised inside, with the name of the site.
    """
    try:
        yield
    except DataError as error:
        hint = "To begin without it: fedtailor deploy pause."
        error.message = f"site '{name}': {error.message} {hint}"
        error.args = (error.message,)
        raise


def _check_description(data: Any) -> None:
    """Check the form of what a site says of its data."""
    keys = {*_SAME, *_LISTS, "has_test", "encoder"}
    if not isinstance(data, Mapping) or set(data) != keys:
        raise wrong("data", ", ".join(sorted(keys)), data)

    columns = data["columns"]
    if columns is not None and not _are_names(columns):
        raise wrong("data.columns", "a list of names", columns)

    classes = data["classes"]
    are_different = _are_names(classes) and len(set(classes)) == len(classes)
    if not are_different or not 0 < len(classes) <= MOST_CLASSES:
        raise wrong("data.classes", f"1 to {MOST_CLASSES} names, all different", classes)

    # A model is built for examples of this shape.
    shape = data["shape"]
    are_sizes = isinstance(shape, list) and 0 < len(shape) <= MOST_AXES
    are_sizes = are_sizes and all(type(size) is int and size > 0 for size in shape)
    if not are_sizes or math.prod(shape) > LARGEST_SHAPE:
        raise wrong("data.shape", f"sizes of at most {LARGEST_SHAPE} numbers", shape)

    if data["encoder"] is not None:
        _check_encoder(data["encoder"])

    numbers = [data["white"]]
    for key in ("mean", "std"):
        if not isinstance(data[key], list) or len(data[key]) > LARGEST_SHAPE:
            raise wrong(f"data.{key}", "a list of numbers", data[key])
        numbers += data[key]
    if not all(type(number) in (int, float) for number in numbers):
        raise wrong("data", "numbers in white, mean and std", numbers)


def _check_encoder(record: Any) -> None:
    """Check the form of what a site says of the encoder of its features."""
    try:
        encoder = encoder_of(record)
        texts = (encoder.target, encoder.digest, encoder.license)
        is_usable = all(len(text) <= _LONGEST_TEXT for text in texts)
    except Exception:  # of wrong types: a site may say anything
        is_usable = False

    if not is_usable:
        raise wrong("data.encoder", "the record of an encoder", record)


def _describe_encoder(record: Mapping[str, Any] | None) -> str:
    """Return what must be equal of the encoders of two sites; paths and licenses may differ."""
    if record is None:
        return "none"

    inputs = record["inputs"]
    facts = [f"the digest {record['digest']}"]
    for name in ("kind", "shape", "stored", "white", "image_size"):
        facts.append(f"{name} {inputs[name]}")

    return ", ".join(facts)


def _are_names(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _word(value: object) -> str:
    return str(value)[:_LONGEST_WORD]


def _check_alike(one: tuple[str, Mapping[str, Any]], other: tuple[str, Mapping[str, Any]]) -> None:
    """Refuse two sites whose data do not fit together; the message names both and both values."""
    for key in (*_SAME, "columns", "encoder"):
        here = one[1][key]
        there = other[1][key]
        if key == "encoder":
            here = _describe_encoder(here)
            there = _describe_encoder(there)

        # Tables may have their columns in any order.
        if key == "columns" and None not in (here, there):
            here = sorted(here)
            there = sorted(there)

        if here != there:
            left = f"{here!s:.{_LONGEST_VALUE}}"
            right = f"{there!s:.{_LONGEST_VALUE}}"
            message = (
                f"the data of the sites differ in {key}: '{one[0]}' has {left}, and "
                f"'{other[0]}' has {right}.{_HINTS.get(key, '')}"
            )
            raise DataError(message, key=f"data.{key}", allowed=left, got=right)


def _with_test_policy(
    config: Config, names: Sequence[str], data: Sequence[Mapping[str, Any]]
) -> Config:
    """Decide where test examples come from: all sites have a test part of their own, or none has.

    Raises:
        DataError: some sites have one.
    """
    if config.data.test != "auto":
        return config

    parts = [bool(description["has_test"]) for description in data]
    if len(set(parts)) > 1:
        message = (
            f"the data of site '{names[parts.index(True)]}' come with a test part, and those of "
            f"'{names[parts.index(False)]}' do not: set data.test in federation.toml to 'own' "
            "(every site takes a share of all its examples) or 'given'."
        )
        raise DataError(message, key="data.test", allowed=["own", "given"], got="auto")

    policy = dataclasses.replace(config.data, test="given" if parts[0] else "own")
    return dataclasses.replace(config, data=policy)


def _agree_on_columns(questions: _Questions, training: Sequence[int], config: Config) -> Columns:
    """Return how cells become features, from what the sites that train say of their columns."""
    question = {"data": dataclasses.asdict(config.data)}
    heads = questions.ask("columns", question)
    summaries = []
    for client in training:
        with _said_by(questions.names[client]):
            summaries.append(ColumnSummaries.from_record(heads[client].get("columns")))

    merged = merge_summaries(
        summaries,
        [questions.names[client] for client in training],
        indicates_missing=config.data.missing == "indicator",
    )
    if merged.columns is None:
        message = "no column has a value in the training examples of the sites."
        raise DataError(message, key="site.data", got="none")

    def ask(exchange: int, request: Request) -> dict[str, list[Counts]]:
        """Return how many cells of each site lie in the intervals of the request."""
        heads = questions.ask("quantiles", {**question, "exchange": exchange, "columns": request})
        sites = []
        for client in training:
            with _said_by(questions.names[client]):
                sites.append(read_counts(heads[client].get("counts"), exchange, request))

        return {name: [counts[name] for counts in sites] for name in request}

    return with_knots(merged.columns, config.data.numbers, ask)


def _inputs(
    config: Config, description: Mapping[str, Any], classes: Sequence[str], columns: Columns | None
) -> InputSpecification:
    """Return how examples become inputs; sites may still say other means and deviations."""
    kind = description["kind"]
    shape = tuple(description["shape"])

    # A table has a feature for every number and category of its columns.
    if columns is not None:
        shape = (len(columns.feature_names),)

    mean = list(config.data.mean) or description["mean"]
    std = list(config.data.std) or description["std"]

    encoder = None
    if description["encoder"] is not None:
        encoder = encoder_of(description["encoder"])
        raw = dict(encoder.inputs, num_classes=len(classes), class_names=list(classes))
        encoder = encoder._replace(inputs=raw)

    # Those of all examples are known only after the sites were asked for them.
    l2 = config.data.normalize == "l2"
    if l2:
        refuse_rows_without_features(kind)
    if l2 or config.data.standardizes(kind, is_embedded=encoder is not None):
        mean = [0.0]
        std = [1.0]

    return InputSpecification(
        kind=kind,
        shape=shape,
        stored=description["stored"],
        white=float(description["white"]),
        mean=np.array(mean, dtype=np.float64),
        std=np.array(std, dtype=np.float64),
        num_classes=len(classes),
        class_names=tuple(classes),
        image_size=config.data.image_size,
        color=config.data.color,
        cells=config.data.cell_rules,
        dataset="the data of the sites",
        columns=columns,
        l2=l2,
        encoder=encoder,
    )


def _standardized(inputs: InputSpecification, records: Mapping[str, Any]) -> InputSpecification:
    """Return the inputs with the mean and deviation of all training examples.

    Args:
        inputs: of the plan.
        records: what each site says of its own, by name.
    """
    width = inputs.shape[0]
    of_sites = []
    for name, record in records.items():
        with _said_by(name):
            of_sites.append(ColumnMoments.from_record(record, width))

    moments = merge_moments(of_sites)
    if moments.count == 0:
        raise _no_training_example()

    normalize = normalization_of(moments, inputs.white)
    mean = np.array(normalize.mean)
    return dataclasses.replace(inputs, mean=mean, std=np.array(normalize.std))


def _plan(
    config: Config, inputs: InputSpecification, sites: Sequence[Registered]
) -> DeploymentPlan:
    """Return the plan of a new run.

    Raises:
        ConfigError: the model or the augmentation does not fit the data.
    """
    # What cannot work is refused before the first round.
    algorithm = make_algorithm(config)
    frozen = algorithm.exchanges > 0
    model_name = config.model.name or default_model(inputs.shape, frozen=frozen)
    build_model(model_name, inputs.shape, inputs.num_classes, config.model.options)
    refuse_impossible_augmentation(algorithm.training, inputs.shape)
    refuse_private_normalization(config, inputs.kind, is_embedded=inputs.encoder is not None)
    config = resolved(config, algorithm, model_name=model_name)
    new_sites = sum(site.new for site in sites)
    return DeploymentPlan(config, inputs, len(sites), new_sites, uuid.uuid4().hex)


def _member(
    site: Registered,
    described: Mapping[str, Any],
    counted: Mapping[str, Any],
    *,
    has_sums: bool,
) -> Member:
    """Return what a site has said of itself.

    Args:
        site: as it is registered.
        described: its answer to what its data are like.
        counted: its answer to how many examples it has.
        has_sums: whether it says no more than that it has some, unless it shares single numbers.
    """
    share: Any = described.get("share")
    if not _are_names(share) or not set(share) <= set(SHARED):
        raise wrong("share", f"some of {', '.join(SHARED)}", share)

    counts = counted.get("counts")
    if not isinstance(counts, Mapping):
        raise wrong("counts", "the numbers of examples", counts)

    # A site that hides its numbers says 1 for a part with examples.
    counts_known = not has_sums or "single" in share
    most = MOST_EXAMPLES if counts_known else 1
    numbers = {}
    for part in ("train", "val", "test"):
        numbers[f"num_{part}"] = whole(f"counts.{part}", counts.get(part), most)

    # Groups make intervals of scores wider.
    groups = whole("counts.test_groups", counts.get("test_groups"), numbers["num_test"])
    if numbers["num_test"] and not groups:
        raise wrong("counts.test_groups", "at least 1 with test examples", groups)

    return Member(
        site.name,
        site.new,
        tuple(share),
        torch=_word(described.get("torch")),
        capability=_word(described.get("capability")),
        test_groups=groups,
        counts_known=counts_known,
        **numbers,
    )


def _check_agreement(agreement: Agreement) -> None:
    """Check that a run can begin.

    Raises:
        ConfigError: validation examples are to decide, and no site has one.
        DataError: no site has a training example, or one does not share the scores that decide.
    """
    schedule = agreement.plan.config.schedule
    roster = agreement.roster()
    if not roster.trainable_clients:
        raise _no_training_example()

    schedule.check_validation(roster.validates, roster.classes)

    if schedule.watches_validation:
        _refuse_hidden_scores(agreement.members)


def _refuse_hidden_scores(members: Iterable[Member]) -> None:
    """Check that all sites share the scores that decide: without one, the choice would be blind."""
    for member in members:
        if "scores" not in member.share:
            message = (
                f"validation scores are to decide, and site '{member.name}' does not share scores."
            )
            raise DataError(message, key="site.share", allowed="scores", got=member.name)


def _no_training_example() -> DataError:
    message = "no site has a training example."
    return DataError(message, key="site.data", allowed="training examples", got=0)


def _unbound(task: Task) -> Task:
    """Return a task as it is before the algorithm is bound to it."""
    return Task(task.model, task.num_classes, task.input_shape)
