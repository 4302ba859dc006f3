"""Assembly: the only place where algorithm, model, data and engine come together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch

from fedtailor.algorithms import load_algorithm
from fedtailor.core import rng, tree
from fedtailor.core.adaptation import WithoutTraining
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.devices import refuse_missing_bfloat16
from fedtailor.core.engine import Engine
from fedtailor.core.errors import DataError, match_name, unknown_name
from fedtailor.core.federation import Federation, Roster
from fedtailor.core.options import wrong_value
from fedtailor.core.robust import RULES
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import BODY, Task, Training
from fedtailor.data.build import DividedData, build, split_record
from fedtailor.data.dataset import Dataset, InputKind
from fedtailor.data.input_specification import InputSpecification, input_specification
from fedtailor.data.split import SplitRecord
from fedtailor.data.tensors import normalization, to_federation
from fedtailor.experiment.config import AlgorithmOptions, Config, as_options
from fedtailor.experiment.tracking import RunProgress
from fedtailor.models import build_model, default_model
from fedtailor.simulation.engines.build import EngineChoice, choose_device, choose_engine
from fedtailor.simulation.rounds import check_run
from fedtailor.simulation.server import example_plan


def refuse_untrainable(config: Config, federation: Federation) -> None:
    """Check that a client can train: otherwise all models would stay as they were at the start.

    Raises:
        DataError: no client can.
    """
    if not federation.roster.trainable_clients:
        section = config.data
        clients = len(federation.splits)
        raise DataError(
            f"no client has a training example: lower data.clients ({clients}) or data.test_share "
            f"({section.test_share:g}), or raise data.fraction ({section.fraction:g}).",
            key="data.clients",
            got=clients,
        )


def refuse_private_normalization(config: Config, kind: InputKind, *, is_embedded: bool) -> None:
    """Check that one example does not change the inputs of others, if noise is to hide it.

    Args:
        config: of the run.
        kind: of the examples.
        is_embedded: whether a frozen encoder makes features of them.

    Raises:
        ConfigError: it does.
    """
    standardizes = config.data.standardizes(kind, is_embedded=is_embedded)
    if config.privacy.unit == "example" and standardizes:
        hint = (
            "Mean and deviation of all training examples are not protected; data.mean and "
            "data.std can be public ones."
        )
        allowed = "'dataset' or 'l2' with privacy.unit = 'example'"
        raise wrong_value("data.normalize", allowed, config.data.normalize, hint)


def refuse_impossible_augmentation(training: Training, shape: tuple[int, ...]) -> None:
    """Check that examples of a shape can be moved and mirrored as ``[training]`` asks for.

    Raises:
        ConfigError: the examples are not images, or would be moved out of view.
    """
    if not training.augments:
        return

    if len(shape) != 3:
        name = "flip" if training.flip else "crop_padding"
        allowed = f"left out for examples of shape {shape}, which are not images"
        raise wrong_value(f"training.{name}", allowed, getattr(training, name))

    if training.crop_padding >= min(shape[1:]):
        allowed = f"less than {min(shape[1:])}, the side of an image"
        raise wrong_value("training.crop_padding", allowed, training.crop_padding)


def notes_on_idle_training(
    algorithm: AnyAlgorithm, federation: Federation, schedule: Schedule
) -> Iterator[str]:
    """Yield a note if clients train whose work has no effect."""
    if not schedule.everybody_trains(algorithm.trains):
        return

    # What a client keeps is the only thing that its training outside the cohort could change.
    state = algorithm.init_client(federation.common_task, federation.info(0), rng.new_key(0))
    if not tree.leaves(state):
        yield (
            "with federation.train 'all', the training of clients outside the cohort has no "
            "effect: with this method, clients keep nothing from round to round."
        )


def notes_on_idle_options(algorithm: AnyAlgorithm, schedule: Schedule) -> Iterator[str]:
    """Yield a note for every option that has no effect because of another one."""
    default = Schedule()
    for name in _IDLE_BESIDE.get(schedule.server_optimizer, ()):
        if getattr(schedule, name) != getattr(default, name):
            other = f"federation.server_optimizer = '{schedule.server_optimizer}'"
            yield f"federation.{name} has no effect with {other}."

    # Some methods always train by plain steps, and others without momentum.
    training = algorithm.training
    uses_adam = training.optimizer == "adam" and "optimizer" not in algorithm.unused_training
    if uses_adam and training.momentum and "momentum" not in algorithm.unused_training:
        yield "training.momentum has no effect with training.optimizer = 'adam'."


def notes_on_unprotected_fields(
    algorithm: AnyAlgorithm, task: Task, schedule: Schedule
) -> Iterator[str]:
    """Yield a note if the robust rule leaves some of what clients upload as it is."""
    rule = RULES.get(schedule.robust)
    fields = rule.unprotected_fields(algorithm.messages(task)) if rule else []
    if fields:
        names = ", ".join(f"'{name}'" for name in fields)
        what = "is not a mean" if len(fields) == 1 else "are not means"
        them = "it" if len(fields) == 1 else "them"
        yield (
            f"federation.robust = '{schedule.robust}' protects means over clients. {names} of "
            f"{type(algorithm).__name__} {what}, so one client can still corrupt {them}; 'krum' "
            "looks at whole uploads."
        )


def notes_on_exchanges(algorithm: AnyAlgorithm, schedule: Schedule) -> Iterator[str]:
    """Yield a note if a method that is done after some exchanges was asked for other rounds."""
    used = with_exchanges(schedule, algorithm)
    asked = []
    if schedule.rounds not in (used.rounds, Schedule().rounds):
        asked.append(f"federation.rounds {schedule.rounds}")
    if schedule.participation.plan != used.participation.plan:
        asked.append(f"federation.participation {schedule.participation.as_value()}")

    if asked:
        times = "one exchange" if used.rounds == 1 else f"{used.rounds} exchanges"
        yield (
            f"{type(algorithm).__name__} is done after {times} with all clients, in place of "
            f"{' and '.join(asked)}."
        )


def notes_on_means_only(chosen: AnyAlgorithm, used: AnyAlgorithm) -> Iterator[str]:
    """Yield a note if noise would hide so much that a method sends less than was chosen."""
    if used != chosen:
        yield (
            "with so much noise on so few examples, second moments would tell nothing: only counts "
            "and class means are sent (algorithm.means_only). A model of fewer features, such as "
            "'projection', may keep them."
        )


def notes_on_frozen_body(algorithm: AnyAlgorithm, task: Task, model_name: str) -> Iterator[str]:
    """Yield a note if the model has a body, and the method does not train it."""
    is_meant = model_name == "projection"
    if algorithm.exchanges and task.names(*BODY) and not is_meant:
        yield (
            f"{type(algorithm).__name__} does not train the body of the model: use a pretrained "
            "one, or the model 'linear' if the inputs are features already."
        )


_EVALUATION_SHARE = 0.05
"""Share of the time of training that evaluations during a run may take by default."""
_ADAPTIVE = ("server_beta2", "server_epsilon")
_IDLE_BESIDE: Mapping[str, tuple[str, ...]] = {
    "none": ("server_lr", "server_momentum", *_ADAPTIVE),
    "sgd": _ADAPTIVE,
    "adagrad": ("server_beta2",),
}
"""Options of ``federation`` without effect, by the server optimizer."""


class PreparedRun(NamedTuple):
    """An experiment of one seed, ready to run.

    Everything that can be wrong with a configuration was checked.
    """

    config: Config
    """Resolved: every option has the value that the run uses."""
    algorithm: AnyAlgorithm
    federation: Federation
    choice: EngineChoice
    device: torch.device
    """Where programs run and the server computes."""
    divided: DividedData
    inputs: InputSpecification
    """How examples become inputs of the model."""
    split: SplitRecord
    """Which client has which examples."""
    notes: list[str]

    @property
    def engine(self) -> Engine:
        """The engine that runs the clients' programs. Who assembled the run closes it."""
        return self.choice.engine


def assemble(
    config: Config,
    seed: int,
    *,
    dataset: Dataset | None = None,
    progress: RunProgress | None = None,
) -> PreparedRun:
    """Check a configuration and build everything that a run of one seed needs; nothing is written.

    Args:
        config: the experiment.
        seed: the run's seed.
        dataset: in place of loading the data set that ``config`` names.
        progress: is told how far the data is prepared.

    Raises:
        ConfigError: an option is wrong.
        DataError: data is missing or damaged, or cannot be divided as asked.
    """
    # What needs no data comes first, because reading it may take minutes.
    algorithm = make_algorithm(config)
    schedule = with_exchanges(config.schedule, algorithm)
    device = choose_device(config.engine, schedule)
    refuse_missing_bfloat16(algorithm.training.precision, device)
    progress = progress or RunProgress()
    try:
        divided = build(
            config.data,
            run_seed=seed,
            dataset=dataset,
            report=progress.prepare,
            late=schedule.late,
        )
        if config.data.encoder:
            from fedtailor.data.embedding import embed

            divided = embed(divided, progress.prepare)
    except BaseException:
        progress.end()
        raise

    shape = divided.dataset.input_shape
    num_classes = divided.dataset.num_classes

    # The shape of the examples decides the default model.
    model_name = config.model.name or default_model(shape, frozen=algorithm.exchanges > 0)
    model = build_model(model_name, shape, num_classes, config.model.options)
    normalize = normalization(divided)
    federation = to_federation(divided, Task(model, num_classes, shape), normalize)
    federation = _with_other_models(federation, config.model.others)
    is_embedded = divided.dataset.encoder is not None
    refuse_private_normalization(config, divided.dataset.kind, is_embedded=is_embedded)

    # What the data and the model cannot do is refused before the first round.
    refuse_untrainable(config, federation)
    check_run(algorithm, federation.roster, schedule, config.privacy)
    chosen = algorithm
    hides_examples = config.privacy.unit == "example"
    if hides_examples and not algorithm.bounds_examples:
        # Few runs have noise, and others do not import this, and SciPy.
        from fedtailor.simulation.noisy_sums import for_noise

        algorithm = for_noise(algorithm, federation.roster, schedule, config.privacy)
    refuse_impossible_augmentation(algorithm.training, shape)
    is_bounded = hides_examples and algorithm.bounds_examples
    choice = choose_engine(
        config.engine, algorithm, federation, schedule, device, one_by_one=is_bounded
    )

    # A run with the values that "auto" stood for is the same run.
    data = config.data
    if not data.split:
        data = dataclasses.replace(divided.division.options, seed=data.seed)
    engine = dataclasses.replace(config.engine, name=cast(Any, choice.engine.name))
    if engine.device == "auto":
        engine = dataclasses.replace(engine, device=device.type)
    used = resolved(config, algorithm, model_name=model_name, roster=federation.roster)
    used = dataclasses.replace(used, seeds=(seed,), data=data, engine=engine)

    # What a user should know, though nothing is wrong.
    task = algorithm.bind(federation.common_task)
    notes = [
        *_preset_warnings(config.algorithm, algorithm),
        *algorithm.warnings(federation.common_task),
        *divided.notes,
        *notes_on_means_only(chosen, algorithm),
        *notes_on_exchanges(algorithm, config.schedule),
        *notes_on_frozen_body(algorithm, federation.common_task, model_name),
        *notes_on_idle_training(algorithm, federation, schedule),
        *notes_on_idle_options(algorithm, schedule),
        *notes_on_unprotected_fields(algorithm, task, schedule),
    ]

    inputs = input_specification(divided, normalize)
    split = split_record(divided.division, divided.conditions)
    return PreparedRun(used, algorithm, federation, choice, device, divided, inputs, split, notes)


def planned_privacy(parts: PreparedRun) -> dict[str, Any]:
    """Return what noise will promise after all rounds of a run, in the form of its result."""
    # Few runs have noise, and others do not import this, and SciPy.
    from fedtailor.privacy.plan import drawn_from, planned_record

    privacy = parts.config.privacy
    schedule = parts.config.schedule
    roster = parts.federation.roster
    plan = example_plan(parts.algorithm, roster, schedule, privacy)
    if plan is not None:
        return plan.record(plan.epsilons())

    drawn = drawn_from(
        privacy,
        schedule,
        population=roster.population,
        trainable=len(roster.trainable_clients),
    )
    return planned_record(privacy, schedule, drawn)


def resolved(
    config: Config,
    algorithm: AnyAlgorithm,
    *,
    model_name: str,
    roster: Roster | None = None,
) -> Config:
    """Return a configuration with the values that are used, as far as its parts decide them.

    Args:
        config: the configuration.
        algorithm: made from it.
        model_name: of the default model, if none is named.
        roster: the clients; None: they are not known yet.
    """
    schedule = with_exchanges(config.schedule, algorithm)
    schedule = _with_evaluations(schedule, algorithm, roster)

    # "auto" leaves to the method who trains.
    everybody = schedule.everybody_trains(algorithm.trains)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, name=model_name),
        algorithm=resolved_options(config.algorithm, algorithm),
        training=algorithm.training,
        schedule=dataclasses.replace(schedule, train="all" if everybody else "cohort"),
    )


def with_exchanges(schedule: Schedule, algorithm: AnyAlgorithm) -> Schedule:
    """Return the schedule of a method, which may be done after some exchanges with all clients."""
    if not algorithm.exchanges:
        return schedule

    participation = dataclasses.replace(schedule.participation, plan="all")
    return dataclasses.replace(schedule, rounds=algorithm.exchanges, participation=participation)


def _with_evaluations(
    schedule: Schedule, algorithm: AnyAlgorithm, roster: Roster | None
) -> Schedule:
    """Return a schedule that says after which rounds models are evaluated, where it says ``auto``.

    It is every tenth of the rounds where that takes at most 5 % of the time, else every third, so
    that a curve has three points, else after the last round only. Times are those of passes over
    examples: a step of training counts as three, a test as one.
    """
    every = max(1, schedule.rounds // 10)
    steps = [step for step in algorithm.adaptation if step]
    is_plain = all(isinstance(step, WithoutTraining) for step in steps)
    if roster is not None:
        # Passes of all clients over their examples in a round.
        num_clients = len(roster.known)
        num_train = sum(roster.num_train[client] for client in roster.known)
        options = algorithm.training
        passes = options.epochs * num_train
        if options.steps:
            # A batch of 0 has all examples of a client.
            passes = options.steps * (options.batch_size * num_clients or num_train)
        training = 3 * passes * schedule.participation.share(num_clients)

        # The global model, local models, personalized ones, and what makes the latter.
        num_test = sum(roster.num_test)
        evaluation = 2 * num_test
        if is_plain:
            evaluation += num_test + (sum(roster.num_train) if steps else 0)

        longest = max(1, schedule.rounds // 3)
        limit = _EVALUATION_SHARE * training
        every = next((number for number in (every, longest) if evaluation <= limit * number), 0)

    if schedule.evaluate_every == "auto":
        schedule = dataclasses.replace(schedule, evaluate_every=every)
    if schedule.personalized_every == "auto":
        schedule = dataclasses.replace(schedule, personalized_every=every if is_plain else 0)
    return schedule


def _preset_warnings(section: AlgorithmOptions, algorithm: AnyAlgorithm) -> Iterator[str]:
    """Yield what the algorithm says of its preset, if anything."""
    preset = match_name(section.preset, type(algorithm).presets) or ""
    warnings = type(algorithm).preset_warnings
    if preset in warnings:
        yield warnings[preset]


def _with_other_models(federation: Federation, others: tuple[str, ...]) -> Federation:
    """Give clients the common model and the others in turn."""
    if not others:
        return federation

    common = federation.common_task
    tasks = [common]
    for name in others:
        model = build_model(name, tuple(common.input_shape), common.num_classes)
        tasks.append(common._replace(model=model))

    client_tasks = [tasks[client % len(tasks)] for client in range(len(federation.splits))]
    return dataclasses.replace(federation, client_tasks=client_tasks)


def make_algorithm(config: Config) -> AnyAlgorithm:
    """Build the algorithm from its name, preset and options, which may be of ``[training]`` too.

    Raises:
        ConfigError: unknown algorithm, preset or option, or a value out of range.
    """
    section = config.algorithm
    cls = load_algorithm(section.name)
    own_options = cls.option_names()
    training_options = [field.name for field in dataclasses.fields(Training)]
    values: dict[str, Any] = {}
    training_values: dict[str, Any] = {}
    for name, value in section.options.items():
        if name in own_options:
            values[name] = value
        elif name in training_options:
            training_values[name] = value
        else:
            known = sorted(["name", "preset", *own_options, *training_options])
            raise unknown_name("option", name, known, of=section.name, key=f"algorithm.{name}")

    checked = as_options(Training, training_values)
    training = dataclasses.replace(config.training, **checked)
    options = as_options(cls, values)
    return cls.from_preset(section.preset, training=training, **options)


def resolved_options(section: AlgorithmOptions, algorithm: AnyAlgorithm) -> AlgorithmOptions:
    """Return the section with the value of every field of the algorithm."""
    options = {name: getattr(algorithm, name) for name in type(algorithm).option_names()}
    return AlgorithmOptions(name=section.name, preset=section.preset, options=options)
