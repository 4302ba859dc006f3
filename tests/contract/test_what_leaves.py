"""The list of what leaves a site has every field of every method, with the bytes that rounds count."""

import pytest

from contract.cases import ALGORITHMS, FEW, build
from federations import TASKS, make_federation
from fedtailor.experiment.algorithm_card import sent_by_method
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run
from marks import quick


@pytest.mark.parametrize(
    ("name", "options"),
    quick(
        [*((name, {}) for name in ALGORITHMS), ("fedpac", {"combine_heads": False})],
        *((name, {}) for name in FEW),
    ),
)
def test_every_field_is_listed_with_its_bytes(name, options):
    # All clients have examples of every class: rows of absent classes would not be sent.
    federation = make_federation(TASKS["mlp"](), sizes=(20, 30, 25), new_sizes=())
    algorithm = build(name, **options)
    task = algorithm.bind(federation.common_task)
    declared = {
        field: spec.reduction
        for field, spec in algorithm.messages(task).items()
        if spec.reduction != "none"
    }

    values = sent_by_method(algorithm, task)
    (report,) = run(algorithm, Reference(), federation, rounds=1).reports
    fields = {value.name: value for value in values if not value.name.startswith("weight of")}
    assert {field: value.reduction for field, value in fields.items()} == declared
    assert {field for field, value in fields.items() if value.names_single_sites} == {
        field for field, reduction in declared.items() if reduction == "each"
    }

    # Of two exchanges, each has some of the fields only.
    total = len(report.cohort) * sum(value.bytes for value in values)
    if algorithm.exchanges > 1:
        assert total > report.bytes_up
    else:
        assert total == report.bytes_up
