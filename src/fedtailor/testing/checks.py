"""Checks of what an algorithm declares, sends, keeps, counts and depends on, and if it learns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.adaptation import Adaptation, describe
from fedtailor.core.codec import encode
from fedtailor.core.devices import to_host
from fedtailor.core.engine import Failure
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.message import Mean
from fedtailor.core.rng import new_key
from fedtailor.simulation.checkpoint import readable_modules
from fedtailor.simulation.quarantine import all_finite, problem_with_personal
from fedtailor.testing.advice import FEW, advice, advice_on_error
from fedtailor.testing.case import Case, Check, Lesson
from fedtailor.testing.engines import Exposed
from fedtailor.testing.locate import explain, root_cause
from fedtailor.testing.runs import Trace, assert_same_bits, problem_with_output
from fedtailor.testing.spy import structure

METHODS = {
    "train": "local_update",
    "personalize": "onboard, personalize or predict",
    "score": "predict",
}
"""Program -> the methods of an algorithm that it calls."""

FIRST = "Fix this first: checks that compare runs were skipped"

_REPORT_STEPS = 'Return metrics={"steps": trained.steps, ...}, the sum over all phases of training'

_LAST_CLIENT = 6
"""The known client with the most examples; the known clients before it are 0 to 5."""


def check_descriptions(case: Case) -> str | None:
    """Warnings, descriptions, class constants and presets are valid."""
    algorithm = case.algorithm
    warnings = algorithm.warnings(case.task())
    if not (isinstance(warnings, list) and all(isinstance(sentence, str) for sentence in warnings)):
        return f"warnings must return a list of sentences, got {warnings!r}."

    for method, name in {"personalize": "adaptation", "onboard": "onboarding"}.items():
        values = getattr(algorithm, name)
        if not (
            isinstance(values, list | tuple)
            and all(isinstance(value, Adaptation) for value in values)
        ):
            return (
                f"{name} must be a list of what {method} does with a client's data, such as "
                "[FineTuning(epochs=5)] (5 epochs of all layers) "
                f'or [WithoutTraining("closed form")], got {values!r}.'
            )

    if algorithm.trains not in ("cohort", "all"):
        return f'trains must be "cohort" or "all", got {algorithm.trains!r}.'

    point = algorithm.primary_evaluation
    if point not in ("global", "local", "personalized"):
        return f'primary_evaluation must be "global", "local" or "personalized", got {point!r}.'

    for preset in algorithm.presets:
        type(algorithm).from_preset(preset)

    return None


def check_clients(case: Case) -> str | None:
    """What every client returns can be used, also from new clients and from small ones."""
    return unusable(case, case.base())


def unusable(case: Case, trace: Trace, model: str = "mlp") -> str | None:
    """Return the first output of a run that cannot be used, in a sentence."""
    messages = case.algorithm.messages(case.task(model))
    for round, program, client, output in trace.outputs:
        if isinstance(output, Failure):
            reason = explain(output.reason, type(case.algorithm))
            hint = advice_on_error(root_cause(output.reason))
            if not hint and case.size(client) <= 2:
                hint = f" {FEW}."

            return f"{case.where(round, client)}: {METHODS[program]} fails: {reason}.{hint}"

    for (round, client), output in trace.of("train").items():
        problem = problem_with_output(output, messages)
        if problem is not None:
            return (
                f"{case.where(round, client)}: what local_update returns cannot be used: "
                f"{problem}.{advice(problem, messages)}"
            )

    # Personal models may be unusable until training has come to an end.
    for (round, client), output in trace.of("personalize").items():
        if round < len(trace.reports):
            continue

        part = ""
        if problem_with_personal(output.personal):
            part = "the personal model"
        elif not all_finite(output._replace(personal=())):
            part = "its diagnostics or scores"
        if part:
            return (
                f"{case.where(round, client)}: {METHODS['personalize']} returns values that are "
                f"not finite in {part}. {FEW}."
            )

    return None


def check_weights(case: Case) -> str | None:
    """The weights of means are those that ``messages`` declares."""
    messages = case.algorithm.messages(case.task())
    federation = case.federation()
    for (round, client), output in case.base().of("train").items():
        if isinstance(output, Failure):
            continue

        # Every run checks "equal", and "own" may be anything.
        means = {
            name: entry
            for name, entry in output.upload.items()
            if isinstance(entry, Mean)
            and name in messages
            and messages[name].weight in ("num_train", "class_counts")
        }
        for name, entry in means.items():
            kind = messages[name].weight
            weight = to_host(entry.weight, "the comparison with a declared weight")
            expected = getattr(federation.info(client), kind)
            if weight.shape != expected.shape or not torch.equal(weight, expected):
                return (
                    f"{case.where(round, client)}: field '{name}' is sent with weight "
                    f'{_short(weight)}, but messages declares weight="{kind}", which is '
                    f"{_short(expected)}. Send Mean(value, data.info.{kind}), or declare another "
                    'weight; "own" is for weights that the client computes.'
                )

    return None


def _short(weight: Tensor) -> str:
    if weight.dim() == 0:
        return f"{float(weight):g}"
    return str([round(value, 3) for value in weight.flatten().tolist()])


def check_downloads(case: Case) -> str | None:
    """Clients receive what ``messages`` declares: bytes are counted from it."""
    algorithm = case.algorithm
    task = case.task()
    federation = case.federation()
    key = new_key(0)
    cohort = Cohort(torch.arange(3), federation.roster.population, 1, 2)
    server = algorithm.init_federation(task, federation.roster.population, key)
    received = {
        "broadcast": algorithm.broadcast(server, cohort),
        "init_per_client": algorithm.init_per_client(task, federation.info(0), key),
    }

    # Fields have no place in the broadcast: only the shapes of values can be compared.
    fields = [field for field in algorithm.messages(task).values() if field.down]
    declared = Counter(shape for field in fields for shape in field.leaf_shapes().values())

    for method, value in received.items():
        for path, leaf in tree.paths(value).items():
            shape = tuple(leaf.shape)
            if not declared[shape]:
                return (
                    f"{method} returns '{path or '.'}' of shape {shape}, but messages declares no "
                    'such field. Declare it (with reduction="none" if clients do not upload it), '
                    "or return only what is declared."
                )

            declared[shape] -= 1

    missing = sorted(declared.elements())
    if not missing:
        return None

    return (
        f"messages declares that clients receive a value of shape {missing[0]}, but broadcast does "
        "not return one. Declare down=False if clients only upload the field."
    )


_STORED = {
    "server_state": ("The server state", "aggregate"),
    "client_state": ("The client state", "local_update or onboard"),
    "per_client": ("What a client receives as download.per_client", "aggregate or per_client"),
    "personal": ("The personal model", "a later call"),
}
"""Kind of value that a run stores -> its name in sentences, and the methods that return it."""


def check_structure(case: Case) -> str | None:
    """States, values for single clients, and personal models keep their leaves in every round."""
    algorithm = case.algorithm
    task = case.task()
    federation = case.federation()
    info = federation.info(0)
    key = new_key(0)
    server = algorithm.init_federation(task, federation.roster.population, key)

    # The local point may have no model: that is the empty tuple.
    values = case.spied.observed.values.copy()
    values["personal"] = [model for model in values["personal"] if not _is_empty(model)]
    first = {
        "server_state": ("init_server", server),
        "client_state": ("init_client", algorithm.init_client(task, info, key)),
        "per_client": ("init_per_client", algorithm.init_per_client(task, info, key)),
        "personal": ("the first call", next(iter(values["personal"]), ())),
    }

    for kind, (what, later_source) in _STORED.items():
        source, expected = first[kind]
        for value in values[kind]:
            if structure(value) != structure(expected):
                difference = _difference_of_structure(expected, value, source, later_source)
                return (
                    f"{what} changes its structure: {difference}. Return the same names, shapes "
                    "and types in every round."
                )

    return None


def _is_empty(model: Any) -> bool:
    return isinstance(model, tuple) and model == ()


def _difference_of_structure(first: Any, second: Any, source: str, other_source: str) -> str:
    """Return a leaf in which two trees differ, in words."""
    leaves = _leaves_in_words(first)
    others = _leaves_in_words(second)
    for path in [*leaves, *others]:
        name = f"'{path or '.'}'"
        if path not in others:
            return f"{name} comes from {source}, but not from {other_source}"
        if path not in leaves:
            return f"{name} comes from {other_source}, but not from {source}"
        if leaves[path] != others[path]:
            return f"{name} is {leaves[path]} from {source}, but {others[path]} from {other_source}"

    return f"the order of the leaves differs between {source} and {other_source}"


def _leaves_in_words(value: Any) -> dict[str, str]:
    return {path: f"of shape {shape} and type {dtype}" for path, shape, dtype in structure(value)}


def check_storage(case: Case) -> str | None:
    """States, values for single clients, and personal models can be stored in files."""
    modules = readable_modules(case.algorithm)
    for kind, (what, _) in _STORED.items():
        for value in case.spied.observed.values[kind]:
            try:
                encode(to_host(value, "a test of whether it can be stored"), modules=modules)
            except TypeError as error:
                return f"{what} cannot be stored, so that a run could not be resumed: {error}."

    return None


def check_inputs(case: Case) -> str | None:
    """No method changes its inputs."""
    if not case.spied.changed:
        return None
    program, _, what = case.spied.changed.partition(": ")
    return (
        f"{METHODS.get(program, program)} changes its input in place: {what}. Other clients and "
        "methods use the same tensors: write `value + change` instead of `value += change`, `add_` "
        f"or an assignment to a slice. {FIRST}."
    )


def check_test_data(case: Case) -> str | None:
    """Only scores depend on test examples."""
    if not case.comparable:
        return None

    # If anything but scores changes with the test examples, training or personalization saw them.
    federation = case.federation()
    positions = torch.cat([split.test for split in federation.splits])
    changed = case.run(Exposed(), _with_other_examples(federation, positions))
    where = _first_difference(case.base(), changed, range(len(federation.splits)))
    if not where:
        return None

    return (
        f"{where} depends on test examples. `data.train.x` and `data.train.y` contain the examples "
        "of all clients: select a client's own with `data.train.positions`, or use "
        "`data.train.labels()`, `train` or `forward`."
    )


def check_own_data(case: Case) -> str | None:
    """What a client returns in the first round does not depend on the examples of other clients."""
    if not case.comparable:
        return None

    # In the first round nothing from another client can have come through the server.
    federation = case.federation()
    other_examples = _with_other_examples(federation, federation.splits[_LAST_CLIENT].train)
    changed = case.run(Exposed(), other_examples, rounds=1)
    where = _first_difference(
        case.base(), changed, range(_LAST_CLIENT), rounds=1, programs=("train",)
    )
    if not where:
        return None

    return (
        f"{where} depends on the examples of client {_LAST_CLIENT}, in the first round. A client "
        "may use only its own: `data.train.x` and `data.train.y` contain the examples of all "
        "clients; select a client's own with `data.train.positions`."
    )


def _with_other_examples(federation: Federation, positions: Tensor) -> Federation:
    """Return the federation with other inputs and classes at some positions."""
    x = federation.x.clone()
    y = federation.y.clone()
    x[positions] = -2 * x[positions]
    y[positions] = (y[positions] + 1) % federation.common_task.num_classes
    return replace(federation, x=x, y=y)


def _first_difference(
    first: Trace,
    second: Trace,
    clients: range,
    rounds: int = 2,
    programs: tuple[str, ...] = ("train", "personalize"),
) -> str:
    """Return where two runs differ in anything but scores, or an empty string."""
    for program in programs:
        others = second.of(program)
        for (round, client), output in first.of(program).items():
            if round > rounds or client not in clients:
                continue

            other = others.get((round, client), output)
            if isinstance(output, Failure) or isinstance(other, Failure):
                continue
            if not _same_but_for_scores(output, other):
                return f"Round {round}, client {client}: what {METHODS[program]} returns"

    return ""


def _same_but_for_scores(first: Any, second: Any) -> bool:
    """Return whether two outputs are the same bit for bit, but for their ``scores``."""
    rest = tree.map(torch.nan_to_num, first._replace(scores=()))
    other_rest = tree.map(torch.nan_to_num, second._replace(scores=()))
    try:
        assert_same_bits(rest, other_rest)
    except AssertionError:
        return False
    return True


def check_buffers(case: Case) -> str | None:
    """Statistics of batch normalization are sent with their layers, or are kept by the client."""
    algorithm = case.algorithm
    task = case.task("module")

    # Parameters go by their names, wherever in an upload or a state they are.
    models = {
        name: field for name, field in algorithm.messages(task).items() if field.kind == "model"
    }
    sent = {_last_part(path) for field in models.values() for path in field.leaf_shapes()}
    state = algorithm.init_client(task, case.federation("module").info(0), new_key(0))
    in_state = {_last_part(path) for path in tree.paths(state)}
    missing = [buffer for buffer in task.names("buffer") if buffer not in sent | in_state]
    if not missing or sent.isdisjoint(task.names("body")):
        return None

    names = ", ".join(map(repr, models))
    return (
        f"Field {names} of messages: layers of the body are sent without their statistics of batch "
        f"normalization, such as '{missing[0]}', so that no client has them. Send all of "
        "`task.pick(params, *BODY)` (or `ALL`), or keep the statistics in the client state."
    )


def _last_part(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def check_learning(case: Case) -> str | None:
    """Personal models beat the majority class if classes are easy to tell apart."""
    lesson, _ = case.lessons
    return _nothing_learned(
        lesson, "Personal models learn nothing", "local_update, aggregate and personalize"
    )


def check_new_clients(case: Case) -> str | None:
    """Personal models of new clients beat the majority class if classes are easy to tell apart."""
    if case.new_clients_fail:
        return None
    _, lesson = case.lessons
    what = "Models of clients that never took part in training are not trained"
    return _nothing_learned(lesson, what, "onboard and personalize")


def _nothing_learned(lesson: Lesson, what: str, methods: str) -> str | None:
    if lesson.learned:
        return None
    return (
        f"{what}: after 40 rounds with classes that are easy to tell apart, their accuracy is "
        f"{lesson.accuracy:.2f}; always guessing a client's most frequent class gives "
        f"{lesson.majority:.2f}. Look at {methods}. If the algorithm only learns slowly, because "
        "learning rates are among its own options, pass larger ones to check_algorithm."
    )


def check_steps(case: Case) -> str | None:
    """The gradient steps are reported: tables compare what methods spend."""
    for report in case.base().reports:
        steps = report.metrics.get("steps", {})
        for client in sorted(set(report.trained) - set(steps)):
            return (
                f"{case.where(report.round, client)}: local_update reports no metric "
                f"'steps'. {_REPORT_STEPS}."
            )

        for client, count in steps.items():
            if count < 0 or count != int(count):
                return (
                    f"{case.where(report.round, client)}: metric 'steps' is {count:g}, which "
                    f"is not a number of steps. {_REPORT_STEPS}."
                )

    # More than train took is possible: a custom step may count its gradients.
    for reported, taken in case.spied.observed.steps["local_update"]:
        if 0 <= reported < taken and reported == int(reported):
            return (
                f"local_update reports {reported:g} as metric 'steps', but train took {taken} "
                f"steps. {_REPORT_STEPS}."
            )

    return None


def check_adaptation(case: Case) -> str | None:
    """The use of a client's data is declared, and onboarding counts its steps."""
    algorithm = case.algorithm
    steps = case.spied.observed.steps
    hint = (
        'override the property, for example with [FineTuning("head", epochs=5)], which tables of '
        'results show as "5 epochs of the head"; FineTuning() has no epochs, steps or rounds'
    )
    # The most of all calls: a client without examples takes no step.
    personalizing = max((taken for _, taken in steps["personalize"]), default=0)
    if personalizing > 0 and describe(algorithm.adaptation) == "none":
        return (
            f"personalize trains on a client's data ({personalizing} steps), but adaptation says "
            f"none: {hint}."
        )

    reported = max((count for count, _ in steps["onboard"]), default=0)
    taken = max((count for _, count in steps["onboard"]), default=0)
    onboarding = max(reported, taken)
    if onboarding > 0 and describe(algorithm.onboarding) == "none":
        return (
            f"onboard trains on a client's data ({onboarding:g} steps), but onboarding says none: "
            f"{hint}."
        )
    if reported < taken and not case.new_clients_fail:
        return (
            f"onboard returns {reported:g} steps, but train took {taken}. Return Onboarded(state, "
            "trained.steps)."
        )

    return None


CHECKS: tuple[Check, ...] = (
    check_descriptions,
    check_clients,
    check_weights,
    check_downloads,
    check_structure,
    check_storage,
    check_inputs,
    check_test_data,
    check_own_data,
    check_buffers,
    check_learning,
    check_new_clients,
    check_steps,
    check_adaptation,
)
