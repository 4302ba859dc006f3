"""Checks of what an algorithm declares, sends, keeps and looks at, and whether it learns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.adaptation import Adaptation
from fedtailor.core.engine import Failure
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.message import Mean
from fedtailor.core.rng import new_key
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.quarantine import all_finite, problem_with_output
from fedtailor.testing.advice import FEW, advice, advice_on_error
from fedtailor.testing.case import Case, Check, Lesson
from fedtailor.testing.locate import explain, root_cause
from fedtailor.testing.runs import Trace, assert_same_bits
from fedtailor.testing.spy import structure

METHODS = {"train": "local_update", "personalize": "onboard, personalize or predict", "score": "predict"}
"""Program -> the methods of an algorithm that it calls."""

FIRST = "Correct this first: comparisons of runs were left out"


def check_words(case: Case) -> str | None:
    """What the algorithm says of itself."""
    one = case.algorithm
    said = one.warnings(case.task())
    if not (isinstance(said, list) and all(isinstance(sentence, str) for sentence in said)):
        return f"warnings must return a list of sentences, got {said!r}."
    for method, name in {"personalize": "adaptation", "onboard": "onboarding"}.items():
        values = getattr(one, name)
        if not (isinstance(values, list | tuple) and all(isinstance(value, Adaptation) for value in values)):
            return (
                f"{name} must be a list of what {method} does with a client's data, such as [FineTuning(epochs=5)] "
                f'or [WithoutTraining("closed form")], got {values!r}.'
            )
    if one.trains not in ("cohort", "all"):
        return f'trains must be "cohort" or "all", got {one.trains!r}.'
    if one.primary_evaluation not in ("global", "local", "personalized"):
        return f'primary_evaluation must be "global", "local" or "personalized", got {one.primary_evaluation!r}.'
    for preset in one.presets:
        type(one).from_preset(preset)
    return None


def check_clients(case: Case) -> str | None:
    """Every client's round and personal model can be used, also those with few examples, and new clients'."""
    return unusable(case, case.base())


def unusable(case: Case, record: Trace, model: str = "mlp") -> str | None:
    """Return what of a run with a kind of model cannot be used."""
    messages = case.algorithm.messages(case.task(model))
    for round, program, client, output in record.outputs:
        if isinstance(output, Failure):
            reason = explain(output.reason, type(case.algorithm))
            hint = advice_on_error(root_cause(output.reason))
            if not hint and case.size(client) <= 2:
                hint = f" {FEW}."
            return f"round {round}, {case.who(client)}: {METHODS[program]} fails: {reason}.{hint}"
    for (round, client), output in record.of("train").items():
        problem = problem_with_output(output, messages)
        if problem is not None:
            where = f"round {round}, {case.who(client)}"
            return f"{where}: what local_update returns cannot be used: {problem}.{advice(problem, messages)}"
    for (round, client), output in record.of("personalize").items():
        if round == len(record.reports) and not all_finite(output):
            part = "the personal model" if not all_finite(output[0]) else "its diagnostics or scores"
            where = f"round {round}, {case.who(client)}"
            return f"{where}: {METHODS['personalize']} gives values that are not finite, in {part}. {FEW}."
    return None


def check_weights(case: Case) -> str | None:
    """Weights of means are those that ``messages`` declares; names, shapes and types are checked in every run."""
    declared, world = case.algorithm.messages(case.task()), case.federation()
    for (round, client), output in case.base().of("train").items():
        for name, entry in () if isinstance(output, Failure) else output[1].items():
            kind = declared[name].weight if name in declared else "own"
            if not isinstance(entry, Mean) or kind in ("own", "equal"):  # equal ones are checked in every run
                continue
            expected = getattr(world.info(client), kind)
            if entry.weight.shape != expected.shape or not torch.equal(entry.weight, expected):
                got = _short(entry.weight)
                return (
                    f"round {round}, {case.who(client)}: field '{name}' is sent with weight {got}, but messages "
                    f'declares weight="{kind}", which is {_short(expected)}. Send Mean(value, data.info.{kind}), or '
                    f'declare another weight; "own" is for weights that the client computes.'
                )
    return None


def check_downloads(case: Case) -> str | None:
    """What is sent down is what ``messages`` declares: bytes are counted from it."""
    one, task, world = case.algorithm, case.task(), case.federation()
    cohort = Cohort(torch.arange(3), world.population, 1, 2)
    key, fields = new_key(0), [field for field in one.messages(task).values() if field.down]
    sent = one.broadcast(one.init_server(task, key), cohort), one.init_per_client(task, world.info(0), key)
    declared = Counter(shape for field in fields for shape in field.leaf_shapes().values())
    for method, value in zip(("broadcast", "init_per_client"), sent, strict=True):
        for path, leaf in tree.paths(value).items():
            shape = tuple(leaf.shape)
            if not declared[shape]:
                return (
                    f"{method} sends '{path or '.'}' of shape {shape}, but messages declares no such field. Declare it "
                    '(reduction="none" where it is only sent down), or send only what is declared.'
                )
            declared[shape] -= 1
    absent = sorted(declared.elements())
    return (
        f"messages declares that clients receive a value of shape {absent[0]}, but broadcast sends none. Declare "
        "down=False where a field is only uploaded."
        if absent
        else None
    )


def _short(weight: torch.Tensor) -> str:
    return str([round(value, 3) for value in weight.flatten().tolist()]) if weight.dim() else f"{float(weight):g}"


def check_structure(case: Case) -> str | None:
    """States, own rows and personal models have the same leaves in every round."""
    one, task, info, key = case.algorithm, case.task(), case.federation().info(0), new_key(0)
    seen = case.spied.seen
    models = [model for model in seen["personal"] if not (isinstance(model, tuple) and model == ())]
    cases = {
        "The server state": (one.init_server(task, key), "init_server", seen["server"], "aggregate"),
        "The client state": (one.init_client(task, info, key), "init_client", seen["state"], "local_update or onboard"),
        "A row of Download.per_client": (
            one.init_per_client(task, info, key),
            "init_per_client",
            seen["own"],
            "aggregate",
        ),
        "The personal model": (models[0] if models else (), "the first one", models, "another one"),
    }
    for what, (first, source, values, other) in cases.items():
        for value in values:
            if structure(value) != structure(first):
                return (
                    f"{what} changes its structure: {_odd_leaf(first, value, source, other)}. Return the same names, "
                    "shapes and types in every round, from the first one on."
                )
    return None


def _odd_leaf(first: Any, second: Any, source: str, other: str) -> str:
    """Return a leaf in which two trees differ, in words."""
    one, two = ({path: (shape, dtype) for path, shape, dtype in structure(value)} for value in (first, second))
    for path in [*one, *two]:
        if one.get(path) != two.get(path):
            said = (f"{shape} of {dtype}" for shape, dtype in (leaf for leaf in (one.get(path), two.get(path)) if leaf))
            if path in one and path in two:
                return f"'{path or '.'}' is {' and '.join(said)} (from {source}, and from {other})"
            return (
                f"leaf '{path}' is {'only' if path in one else 'not'} there in what comes from {source}, unlike {other}"
            )
    return f"the order of the leaves differs between {source} and {other}"


def check_inputs(case: Case) -> str | None:
    """No method changes what it is given."""
    if not case.spied.changed:
        return None
    program, _, what = case.spied.changed.partition(": ")
    name = METHODS.get(program, program)
    return (
        f"{name} changes its input in place: {what}. Others use the same tensors: write `value + change` in place of "
        f"`value += change`, `add_` or an assignment to a part. {FIRST}."
    )


def check_test_data(case: Case) -> str | None:
    """Nothing but scores depends on test examples."""
    if not case.comparable:
        return None
    world = case.federation()
    positions = torch.cat([split.test for split in world.splits])
    changed = case.run(Reference(), _changed(world, positions))
    place = _first_difference(case.base(), changed, range(len(world.splits)))
    return place and (
        f"{place} depends on test examples. The tables `data.train.x` and `data.train.y` hold everybody's examples: "
        "take a client's own by `data.train.rows` (`data.train.labels()`, `train`, `forward`)."
    )


def check_own_data(case: Case) -> str | None:
    """What a client does in the first round depends on no other client's examples."""
    if not case.comparable:
        return None
    world = case.federation()
    changed = case.run(Reference(), _changed(world, world.splits[6].train), rounds=1)
    place = _first_difference(case.base(), changed, range(6), rounds=1, programs=("train",))
    return place and (
        f"{place} depends on the examples of client 6, in the first round. A client may use its own only: the tables "
        "`data.train.x` and `data.train.y` hold everybody's; take those at `data.train.rows`."
    )


def _changed(world: Federation, positions: torch.Tensor) -> Federation:
    """Return the federation with other values and labels at some positions, and as many of every class."""
    x, y = world.x.clone(), world.y.clone()
    x[positions] = -2 * x[positions]
    y[positions] = (y[positions] + 1) % world.common_task.num_classes
    return replace(world, x=x, y=y)


def _first_difference(
    one: Trace, other: Trace, clients: range, rounds: int = 2, programs: tuple[str, ...] = ("train", "personalize")
) -> str:
    """Return where runs differ in anything but scores, or nothing."""
    for program in programs:
        for (round, client), output in one.of(program).items():
            found = other.of(program).get((round, client))
            if round > rounds or client not in clients or isinstance(output, Failure) or isinstance(found, Failure):
                continue
            if not _same(output[:-1], (found or output)[:-1]):
                return f"round {round}, client {client}: what {METHODS[program]} returns"
    return ""


def _same(first: Any, second: Any) -> bool:
    try:
        assert_same_bits(*(tree.map(torch.nan_to_num, value) for value in (first, second)))
    except AssertionError:
        return False
    return True


def check_buffers(case: Case) -> str | None:
    """Statistics of batch normalization travel with the layers that they belong to, or are the client's own."""
    one, task, world = case.algorithm, case.task("module"), case.federation("module")
    models = {name: field for name, field in one.messages(task).items() if field.kind == "model"}
    sent = {path.rsplit("/", 1)[-1] for field in models.values() for path in field.leaf_shapes()}
    kept = {path.rsplit("/", 1)[-1] for path in tree.paths(one.init_client(task, world.info(0), new_key(0)))}
    absent = [buffer for buffer in task.names("buffer") if buffer not in sent | kept]
    if not (absent and sent & set(task.names("body"))):
        return None
    names = ", ".join(f"'{name}'" for name in models)
    return (
        f"Field {names} of messages: layers of the body are sent without the statistics of batch normalization, such "
        f"as '{absent[0]}', which nobody would have. Take all of `task.pick(params, *BODY)` (or `ALL`), or keep them "
        "in the client state."
    )


def check_learning(case: Case) -> str | None:
    """Personal models beat the majority class on classes that are easily told apart."""
    what = "Personal models learn nothing"
    return _learns(case.lessons[0], what, "local_update, aggregate and personalize")


def check_new_clients(case: Case) -> str | None:
    """The same for clients that never took part."""
    what = "Models of clients that never took part are not trained"
    return _learns(case.lessons[1], what, "onboard and personalize")


def _learns(lesson: Lesson, what: str, where: str) -> str | None:
    if lesson.learned:
        return None
    return (
        f"{what}: after 40 rounds on data that are easily told apart, their accuracy is {lesson.accuracy:.2f}, and "
        f"{lesson.majority:.2f} by always guessing a client's most frequent class. Look at {where}; where it is only "
        "slow, because learning rates are options of its own, give larger ones to check_algorithm."
    )


CHECKS: tuple[Check, ...] = (
    check_words,
    check_clients,
    check_weights,
    check_downloads,
    check_structure,
    check_inputs,
    check_test_data,
    check_own_data,
    check_buffers,
    check_learning,
    check_new_clients,
)
