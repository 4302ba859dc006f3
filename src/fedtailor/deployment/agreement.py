"""The agreement before the first round: what the sites say of themselves, and the plan that is made
of it.

No example leaves a site for it. Names of classes do, and names of columns, categories, medians,
means and deviations of
tables: the page "what leaves this site" counts them.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor import __version__
from fedtailor.core.errors import DataError, RunError, one_line
from fedtailor.core.roster import Roster
from fedtailor.core.task import Task
from fedtailor.data.column_summaries import ColumnSummaries, merge_summaries
from fedtailor.data.columns import Columns
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.moments import Moments, merge_moments, normalization_of
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange, SiteFailure
from fedtailor.deployment.options import SHARED, DeployOptions, FederationFile
from fedtailor.deployment.plan import PROTOCOL, Plan
from fedtailor.deployment.wire import whole, wrong
from fedtailor.experiment.assembly import make_algorithm, resolved
from fedtailor.experiment.config import Config
from fedtailor.experiment.preconditions import refuse_impossible_augmentation
from fedtailor.models import build_model, default_model

_SAME = ("kind", "shape", "stored", "white", "mean", "std")
"""What must be equal at all sites."""
_HINTS = {"shape": " For pictures, set data.image_size and data.color in federation.toml."}
_MOST_CLASSES = 100_000


class Member(NamedTuple):
    """A site of a run, and what it said of itself."""

    name: str
    new: bool
    share: tuple[str, ...]
    torch: str
    capability: str
    num_train: int = 0
    num_val: int = 0
    num_test: int = 0


class Agreement(NamedTuple):
    """What the server and all sites have agreed on."""

    plan: Plan
    members: list[Member]
    """By number."""

    def roster(self) -> Roster:
        """Return who there is."""
        plan = self.plan
        others = plan.config.model.others
        first = plan.task(0)
        common = Task(first.model, first.num_classes, first.input_shape)
        tasks = []

        for client in range(plan.sites) if others else ():
            task = plan.task(client)
            tasks.append(Task(task.model, task.num_classes, task.input_shape))

        return Roster(
            common_task=common,
            num_train=[member.num_train for member in self.members],
            num_new=plan.new_sites,
            names=[member.name for member in self.members],
            client_tasks=tasks,
            validates=any(member.num_val for member in self.members),
            num_test=[member.num_test for member in self.members],
            class_names=plan.inputs.class_names,
        )

    def notes(self) -> list[str]:
        """Return sentences about the promise of equal bits."""
        builds = sorted(
            {f"torch {member.torch}, {member.capability}" for member in self.members}
            | {_own_build()}
        )
        if len(builds) < 2:
            return []

        return [
            "the sites and the server do not all have the same build of torch and kind of processor "
            f"({'; '.join(builds)}): the last bits of results depend on who computed them."
        ]


def agree(
    exchange: Exchange, file: FederationFile, names: Sequence[str], new: Sequence[bool]
) -> Agreement:
    """Ask all sites, and make the plan.

    Args:
        exchange: with the sites.
        file: what ``federation.toml`` says.
        names: of the sites by number, as they are registered; new ones come last.
        new: whether each is new.

    Raises:
        ConfigError: the configuration does not fit the data.
        DataError: the sites do not fit together; the message names two of them and both values.
        RunError: a site refuses.
    """
    talk = _Talk(exchange, names)
    deploy = file.deploy
    data = dataclasses.asdict(file.config.data)
    described: dict[int, dict[str, Any]] = {}

    def check(client: int, head: Mapping[str, Any]) -> None:
        _check_versions(names[client], head, deploy)
        described[client] = _described(names[client], head)
        _check_alike(names, described)

    heads = talk.ask("describe", {"data": data}, check=check)
    facts = described[0]
    if file.config.data.test == "auto":
        data["test"] = _test_policy(names, described)

    config = dataclasses.replace(
        file.config, data=dataclasses.replace(file.config.data, test=data["test"])
    )
    seed = config.seeds[0] if config.data.seed == "run" else config.data.seed
    columns = None
    if facts["columns"] is not None:
        columns = _columns(talk, names, new, {"data": data, "seed": seed})

    classes = deploy.classes or merge_classes(
        [described[client]["classes"] for client in sorted(described)]
    )
    inputs = _inputs(config, facts, classes, columns)
    plan = _plan(config, inputs, names, new)
    by_training = config.data.standardizes(is_table=inputs.kind == "table")
    begun = talk.ask("begin", {"moments": by_training}, plan=plan)

    if by_training:
        known = [client for client, is_new in enumerate(new) if not is_new]
        width = inputs.shape[0]
        moments = merge_moments(
            [Moments.from_record(begun[client].get("moments"), width) for client in known]
        )
        if moments.count == 0:
            raise _no_training_example()

        normalize = normalization_of(moments, inputs.white)
        inputs = dataclasses.replace(
            inputs, mean=np.array(normalize.mean), std=np.array(normalize.std)
        )
        plan = dataclasses.replace(plan, inputs=inputs)

    members = []
    for client, name in enumerate(names):
        members.append(_member(name, new[client], heads[client], begun[client]))

    return _checked(Agreement(plan, members))


def merge_classes(each: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the names of all classes that sites have: numbers in their order, else sorted as text.

    If all sites have the same names, their order stays.

    Example:
        >>> merge_classes([["2", "10"], ["1", "2"]])
        ('1', '2', '10')
    """
    if all(list(names) == list(each[0]) for names in each):
        return tuple(each[0])
    names = {name for site in each for name in site}
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


class _Talk:
    """Asks all sites something before the first round."""

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        self._exchange = exchange
        self._names = names

    def ask(
        self,
        kind: str,
        what: Mapping[str, Any],
        *,
        plan: Plan | None = None,
        check: Callable[[int, Mapping[str, Any]], None] = lambda client, head: None,
    ) -> dict[int, dict[str, Any]]:
        """Return the heads of the answers of all sites; it waits until every site has answered.

        Raises:
            RunError: a site refuses; as soon as it does.
        """
        head = {"kind": kind, "protocol": PROTOCOL, "fedtailor": __version__, **what}
        blobs = {} if plan is None else {"plan": plan.raw}
        requests = {
            client: Envelope({**head, "client": client}, blobs)
            for client in range(len(self._names))
        }

        def accept(client: int, answer: Envelope) -> bool:
            if answer.head.get("kind") != kind:
                return False

            self._refuse_other(client, answer.head)
            check(client, answer.head)
            return True

        answers = self._exchange.ask(requests, needed=len(requests), accept=accept)
        heads = {}
        for client, answer in answers.items():
            assert not isinstance(answer, SiteFailure), "the exchange waits for all"
            heads[client] = answer.head

        return heads

    def _refuse_other(self, client: int, head: Mapping[str, Any]) -> None:
        """Refuse a site that refuses, or that calls itself by another name than it is registered
        with.
        """
        name = self._names[client]
        for key in ("refused", "failed"):
            if key in head:
                raise RunError(
                    f"site '{name}' refuses: {one_line(str(head[key])).rstrip('.')}.",
                    key="site",
                    got=name,
                )

        claimed = head.get("site")
        if claimed != name:
            message = f"the site that is registered as '{name}' calls itself '{claimed!s:.80}'. Correct its site.toml."
            raise DataError(message, key="site.name", allowed=name, got=str(claimed)[:80])


def _check_versions(name: str, head: Mapping[str, Any], deploy: DeployOptions) -> None:
    here = {"protocol": PROTOCOL, "fedtailor": __version__}
    if not deploy.allow_mixed:
        here["torch"] = torch.__version__

    for what, value in here.items():
        if head.get(what) != value:
            there = f"{head.get(what)!s:.40}"
            hint = " Set deploy.allow_mixed to go on without equal bits." if what == "torch" else ""
            message = f"site '{name}' has {what} {there}, and the server has {value}.{hint}"
            raise DataError(message, key=what, allowed=str(value), got=there)


def _described(name: str, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a site says of its data.

    Raises:
        DataError: it does not say it as it must.
    """
    data = head.get("data")
    needed = {*_SAME, "classes", "has_test", "columns"}
    if not isinstance(data, Mapping) or set(data) != needed:
        raise wrong("data", f"{', '.join(sorted(needed))} of site '{name}'", data)

    for key in ("classes", "columns"):
        names = data[key]
        if names is None and key == "columns":
            continue

        if (
            not isinstance(names, list)
            or not all(isinstance(each, str) for each in names)
            or len(names) > 10**6
        ):
            raise wrong(f"data.{key}", "a list of names", names)

    if not 0 < len(data["classes"]) <= _MOST_CLASSES or len(set(data["classes"])) < len(
        data["classes"]
    ):
        raise wrong("data.classes", "names of classes, all different", data["classes"])

    return dict(data)


def _check_alike(names: Sequence[str], described: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse sites whose data do not fit together, as soon as two are known.

    Raises:
        DataError: naming both sites and both values.
    """
    first, *others = sorted(described)
    for other in others:
        for key in (*_SAME, "columns"):
            here = described[first][key]
            there = described[other][key]
            if key == "columns" and here is not None and there is not None:
                here = sorted(here)
                there = sorted(there)

            if here != there:
                message = (
                    f"the data of the sites differ in {key}: '{names[first]}' has {here!s:.200}, and '{names[other]}' "
                    f"has {there!s:.200}.{_HINTS.get(key, '')}"
                )
                raise DataError(
                    message, key=f"data.{key}", allowed=str(here)[:200], got=str(there)[:200]
                )


def _test_policy(names: Sequence[str], described: Mapping[int, Mapping[str, Any]]) -> str:
    """Return where test examples come from: all sites have a test part of their own, or none has.

    Raises:
        DataError: some sites have one.
    """
    with_test = [names[client] for client, each in sorted(described.items()) if each["has_test"]]
    without = [names[client] for client, each in sorted(described.items()) if not each["has_test"]]
    if with_test and without:
        raise DataError(
            f"the data of site '{with_test[0]}' come with a test part, and those of '{without[0]}' do not: set "
            "data.test in federation.toml to 'own' (every site takes a share of all its examples) or 'given'.",
            key="data.test",
            allowed=["own", "given"],
            got="auto",
        )

    return "given" if with_test else "own"


def _columns(
    talk: _Talk, names: Sequence[str], new: Sequence[bool], what: Mapping[str, Any]
) -> Columns:
    """Return how cells become features, from what the sites that train say of their columns."""
    heads = talk.ask("columns", what)
    known = [client for client, is_new in enumerate(new) if not is_new]
    summaries = [ColumnSummaries.from_record(heads[client].get("columns")) for client in known]
    merged = merge_summaries(summaries, [names[client] for client in known])
    if merged.columns is None:
        raise DataError(
            "no column has a value in the training examples of the sites.",
            key="site.data",
            got="none",
        )

    return merged.columns


def _inputs(
    config: Config, facts: Mapping[str, Any], classes: Sequence[str], columns: Columns | None
) -> InputSpecification:
    """Return how examples become inputs; means and deviations are those of the data set until the
    sites say theirs.
    """
    kind = facts["kind"]
    shape = tuple(facts["shape"]) if columns is None else (len(columns.feature_names),)
    mean = list(config.data.mean) or facts["mean"]
    std = list(config.data.std) or facts["std"]
    if config.data.standardizes(is_table=kind == "table"):
        mean = [0.0]
        std = [1.0]

    return InputSpecification(
        kind=kind,
        shape=shape,
        stored=facts["stored"],
        white=float(facts["white"]),
        mean=np.array(mean, dtype=np.float64),
        std=np.array(std, dtype=np.float64),
        num_classes=len(classes),
        class_names=tuple(classes),
        image_size=config.data.image_size,
        color=config.data.color,
        dataset="the data of the sites",
        columns=columns,
    )


def _plan(
    config: Config, inputs: InputSpecification, names: Sequence[str], new: Sequence[bool]
) -> Plan:
    algorithm = make_algorithm(config)
    model_name = config.model.name or default_model(inputs.shape)
    build_model(
        model_name, inputs.shape, inputs.num_classes, config.model.options
    )  # what does not fit is told here
    refuse_impossible_augmentation(algorithm.training, inputs.shape)
    config = resolved(config, algorithm, model_name=model_name)
    return Plan(config, inputs, len(names), sum(new), uuid.uuid4().hex)


def _member(
    name: str, is_new: bool, described: Mapping[str, Any], begun: Mapping[str, Any]
) -> Member:
    share = described.get("share")
    counts = begun.get("counts")
    if not isinstance(share, list) or not set(share) <= set(SHARED):
        raise wrong("share", f"some of {', '.join(SHARED)}", share)
    if not isinstance(counts, Mapping):
        raise wrong("counts", f"the numbers of examples of site '{name}'", counts)

    numbers = [
        whole(f"counts.{part}", counts.get(part), 2**53) for part in ("train", "val", "test")
    ]
    build = str(described.get("torch"))[:80]
    capability = str(described.get("capability"))[:80]

    return Member(name, is_new, tuple(share), build, capability, *numbers)


def _checked(agreement: Agreement) -> Agreement:
    """Return the agreement, if a run can begin with it.

    Raises:
        ConfigError: validation examples are to decide, and a site has or shares none.
        DataError: no site has a training example.
    """
    schedule = agreement.plan.config.schedule
    roster = agreement.roster()
    if not roster.trainable_clients:
        raise _no_training_example()

    schedule.check_validation(roster.validates)
    silent = [member.name for member in agreement.members if "scores" not in member.share]
    if schedule.watches_validation and silent:
        message = f"validation scores are to decide, and site '{silent[0]}' does not share scores."
        raise DataError(message, key="site.share", allowed="scores", got=silent[0])

    return agreement


def _no_training_example() -> DataError:
    return DataError(
        "no site has a training example.", key="site.data", allowed="training examples", got=0
    )


def _own_build() -> str:
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
