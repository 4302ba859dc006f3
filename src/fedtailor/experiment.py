"""Run an experiment: the only place that assembles algorithm, model, data and engine."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedtailor import records, summary
from fedtailor.algorithms import load_algorithm
from fedtailor.atomic import safe_name
from fedtailor.config import AlgorithmOptions, Config, as_options, to_toml
from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine
from fedtailor.core.errors import unknown_name
from fedtailor.core.federate import check_tasks, federate
from fedtailor.core.federation import Federation
from fedtailor.core.metrics import per_client
from fedtailor.core.participation import parse_participation
from fedtailor.core.per_example import holds_examples
from fedtailor.core.protocol import Protocol
from fedtailor.core.report import RoundReport
from fedtailor.core.task import Task, Training
from fedtailor.data.build import DividedData, build, split_record
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.tensors import to_federation
from fedtailor.engines import build_engine
from fedtailor.models import build_model, default_model
from fedtailor.preconditions import refuse_impossible_moves, refuse_untrainable
from fedtailor.progress import Progress, Silence
from fedtailor.provenance import describe, describe_data


class Parts(NamedTuple):
    """An experiment of one seed, ready to run: everything that can be wrong with a configuration was checked."""

    config: Config
    """Resolved: every option has the value that is used."""
    algorithm: Algorithm[Any, Any, Any]
    federation: Federation
    engine: Engine
    protocol: Protocol
    divided: DividedData
    notes: list[str]


def run(
    config: Config | None = None, *, out: str | Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run an experiment, once per seed, and return its result: what ``fedtailor run --json`` prints.

    Args:
        config: the experiment; default: pFedFDA on the embedded digits.
        out: the run folder; default: ``runs/ALGORITHM-DATASET-TIME``.
        progress: what is told while it runs; default: nothing.

    Raises:
        ConfigError: an option is wrong, or the folder exists.
        DataError: data is missing or damaged, or cannot be divided as asked.
        RunError: the run could not go on.

    Example:
        >>> result = run(make_config({"federation": {"rounds": 5}}), out="runs/first")  # doctest: +SKIP
        >>> result["metrics"]["personalized"]["accuracy"]["mean"]  # doctest: +SKIP
    """
    config = config or Config()
    progress = progress or Silence()
    path = Path(out) if out is not None else default_folder(config)
    records.refuse_existing(path)
    parts = assemble(config, config.seeds[0], progress=progress)
    if len(config.seeds) == 1:
        return run_seed(parts, path, progress)
    everything = dataclasses.replace(parts.config, seeds=config.seeds)
    config_text, provenance = to_toml(everything), _provenance(parts)
    with records.RunFolder(path, config=config_text, provenance=provenance, several_seeds=True) as folder:
        results = []
        for seed in config.seeds:
            if seed != parts.config.seeds[0]:
                parts = assemble(config, seed, dataset=parts.divided.division.dataset, progress=progress)
            results.append(run_seed(parts, path / f"seed-{seed}", progress))
        result = {**summary.average(results), "run": str(path), "seeds": list(config.seeds)}
        folder.finish(result)
    return result


def default_folder(config: Config) -> Path:
    """Return a run folder that does not exist yet: ``runs/ALGORITHM-DATASET-TIME``."""
    return unused_folder(f"{config.algorithm.name}-{config.data.title}")


def unused_folder(name: str) -> Path:
    """Return a folder under ``runs`` that does not exist yet, named with the time."""
    name = safe_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


def assemble(config: Config, seed: int, *, dataset: Dataset | None = None, progress: Progress | None = None) -> Parts:
    """Check a configuration and build everything that a run of one seed needs; nothing is written.

    Args:
        config: the experiment.
        seed: the run's seed.
        dataset: in place of loading the data set that ``config`` names.
        progress: what is told while data are prepared.

    Raises:
        ConfigError: an option is wrong.
        DataError: data is missing or damaged, or cannot be divided as asked.
    """
    algorithm = make_algorithm(config)
    section = config.federation
    protocol = Protocol(
        rounds=section.rounds,
        participation=parse_participation(
            section.participation, min_clients=section.min_clients, full_last_round=section.full_last_round
        ),
        train=section.train,
        evaluate_every=config.evaluation.every,
        personalized_every=config.evaluation.personalized_every,
    )
    engine = build_engine(config.engine)
    prepare = (progress or Silence()).prepare
    divided = build(config.data, run_seed=seed, dataset=dataset, progress=prepare)
    protocol.participation.check(len(divided.rows) - divided.num_new)
    shape, num_classes = divided.dataset.input_shape, divided.dataset.num_classes
    model_name = config.model.name or default_model(shape)
    model = build_model(model_name, shape, num_classes, config.model.options)
    federation = to_federation(divided, Task(model, num_classes, shape))
    federation = _with_other_models(federation, config.model.others)
    refuse_untrainable(config, federation)
    check_tasks(algorithm, federation)
    refuse_impossible_moves(algorithm.training, shape)
    resolved = dataclasses.replace(
        config,
        seeds=(seed,),
        data=_reusable(config.data, divided.division.options),
        model=dataclasses.replace(config.model, name=model_name),
        algorithm=_resolved(config.algorithm, algorithm),
        training=algorithm.training,
        federation=dataclasses.replace(section, train="all" if protocol.everybody_trains(algorithm) else "cohort"),
        engine=dataclasses.replace(config.engine, name=cast(Any, engine.name)),
    )
    warning = type(algorithm).preset_warnings.get(config.algorithm.preset)
    notes = [*([warning] if warning else []), *algorithm.warnings(federation.common_task), *divided.notes]
    return Parts(resolved, algorithm, federation, engine, protocol, divided, notes)


def _with_other_models(federation: Federation, others: tuple[str, ...]) -> Federation:
    """Give clients the common model and the others in turn."""
    if not others:
        return federation
    first = federation.common_task
    shape, num_classes = tuple(first.input_shape), first.num_classes
    tasks = [first, *(first._replace(model=build_model(name, shape, num_classes)) for name in others)]
    return dataclasses.replace(
        federation, own_tasks=[tasks[client % len(tasks)] for client in range(len(federation.splits))]
    )


def _reusable(given: DataOptions, used: DataOptions) -> DataOptions:
    """Return the options with the values that were used, such that a run with them is the same run."""
    if given.split:
        return given
    return dataclasses.replace(used, seed=given.seed)


def make_algorithm(config: Config) -> Algorithm[Any, Any, Any]:
    """Build the algorithm: its class by name, its preset, and its options; fields of ``[training]`` among them.

    Raises:
        ConfigError: unknown algorithm, preset or option, or a value out of range.
    """
    section = config.algorithm
    cls = load_algorithm(section.name)
    own = cls.option_names()
    shared = [field.name for field in dataclasses.fields(Training)]
    for name in section.options:
        if name not in own and name not in shared:
            raise unknown_name(f"option of {section.name}", name, [*own, *shared], key=f"algorithm.{name}")
    of_training = {name: value for name, value in section.options.items() if name in shared and name not in own}
    values = {name: value for name, value in section.options.items() if name in own}
    training = dataclasses.replace(config.training, **as_options(Training, of_training, section="algorithm"))
    checked = as_options(cls, values, section="algorithm")
    return cls.from_preset(section.preset, training=training, **checked)


def run_seed(parts: Parts, path: Path, progress: Progress) -> dict[str, Any]:
    """Run one seed and write its folder; return its result."""
    start = time.perf_counter()
    name, seed = parts.config.algorithm.name, parts.config.seeds[0]
    with records.RunFolder(path, config=to_toml(parts.config), provenance=_provenance(parts)) as folder:
        folder.write_split({**split_record(parts.divided.division, parts.divided.conditions)})
        folder.add_events([{"kind": "note", "text": note} for note in parts.notes])
        for note in parts.notes:
            progress.note(note)
        progress.begin(f"{name}, {parts.divided.dataset.name}, seed {seed}", parts.protocol.rounds)
        try:
            result = _run_rounds(parts, folder, progress)
        finally:
            progress.end()
        result["seconds"]["total"] = time.perf_counter() - start
        folder.finish(result)
    return result


def _run_rounds(parts: Parts, folder: records.RunFolder, progress: Progress) -> dict[str, Any]:
    """Run all rounds, write each as it ends, and the models after the last; return the result."""
    config, federation = parts.config, parts.federation
    history: list[dict[str, Any]] = []
    events: list[list[dict[str, Any]]] = []
    took_part: set[int] = set()
    for report in federate(parts.algorithm, federation, parts.engine, parts.protocol, seed=config.seeds[0]):
        record = summary.round_record(report, federation)
        folder.add_round(record, clients=summary.client_records(report, federation), events=report.events)
        for sentence in summary.event_sentences(report):
            progress.note(sentence)
        progress.round(record)
        history.append(record)
        events.append(report.events)
        took_part.update(report.trained)
        _write_models(parts, folder, report, took_part)
    metrics, new_clients = summary.final_metrics(history[-1])
    sites = summary.site_scores(report, federation) if parts.divided.division.client_names else {}
    return {
        "run": str(folder.path),
        "algorithm": config.algorithm.name,
        "dataset": parts.divided.dataset.name,
        "clients": len(parts.divided.division.rows),
        "rounds": config.federation.rounds,
        "seeds": list(config.seeds),
        "metrics": metrics,
        **({"new_clients": new_clients} if new_clients else {}),
        **({"sites": sites} if sites else {}),
        **summary.totals(history),
        "events": summary.count_events(events),
        "engine": parts.engine.name,
        "device": "cpu",
    }


def _write_models(parts: Parts, folder: records.RunFolder, report: RoundReport, took_part: set[int]) -> None:
    """Write every client's personal model with its card; ``took_part``: who trained and was not left out."""
    config, federation = parts.config, parts.federation
    scored = {
        client: per_client(scores)
        for evaluation in report.evaluations
        if evaluation.point == "personalized" and evaluation.test_set == "clients"
        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True)
    }
    for client, personal in report.personal.items():
        name = federation.client_names[client] if federation.client_names else str(client)
        tensors = {leaf_path: leaf.detach().contiguous().numpy() for leaf_path, leaf in tree.paths(personal).items()}
        card = {
            "algorithm": config.algorithm.name,
            "model": (config.model.name, *config.model.others)[client % (1 + len(config.model.others))],
            "dataset": parts.divided.dataset.name,
            "seed": config.seeds[0],
            "round": report.round,
            "adaptation": parts.algorithm.treatment(new=client in federation.new),
            "took_part": client in took_part,
            "holds_examples": holds_examples(personal),
            "input_shape": list(federation.common_task.input_shape),
            "num_classes": federation.common_task.num_classes,
            "class_names": list(federation.class_names),
            "condition": federation.conditions[client] if federation.conditions else "clean",
            "class_counts": federation.info(client).class_counts.long().tolist(),
            "scores": scored.get(client, {}),
        }
        folder.write_model(name, tensors, card)


def _resolved(section: AlgorithmOptions, algorithm: Algorithm[Any, Any, Any]) -> AlgorithmOptions:
    """Return the section with the value of every field of the algorithm."""
    options = {name: getattr(algorithm, name) for name in type(algorithm).option_names()}
    return AlgorithmOptions(name=section.name, preset=section.preset, options=options)


def _provenance(parts: Parts) -> dict[str, Any]:
    """Return where the result comes from."""
    split = split_record(parts.divided.division, parts.divided.conditions)
    data = describe_data(parts.divided.division.dataset)
    where = {"engine": parts.engine.name, "device": "cpu"}
    return {**describe(), "data": data, "split_sha256": split["split_sha256"], "notes": parts.notes, **where}
