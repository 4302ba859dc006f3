"""Random federations, training sections and cohorts: padded stacks agree with the loop."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from contract.cases import ALGORITHMS, FEWER, FULL
from federations import make_federation, perceptron
from fedtailor.core.schedule import Participation
from fedtailor.core.task import Training
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.engines import Padded
from fedtailor.testing.runs import assert_close_runs, run

sizes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 10, 17, 30]), min_size=1, max_size=6).filter(
    any
)
trainings = st.builds(
    Training,
    lr=st.just(0.05),
    momentum=st.sampled_from([0.0, 0.5]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    epochs=st.integers(0, 3),
    steps=st.sampled_from([0, 0, 4]),
    batch_size=st.sampled_from([0, 1, 5, 50]),
    drop_last=st.booleans(),
    smallest_batch=st.sampled_from([1, 1, 3]),
    clip_norm=st.sampled_from([0.0, 0.5]),
)
plans = st.sampled_from(
    [
        Participation(),
        Participation(plan="bernoulli", probability=0.6, full_last_round=False),
        Participation(plan="fixed", count=1),
    ]
)
VARIANTS = {
    "fedala": [{"layers": 2, "weight_lr": 50.0, "first_epochs": 2}, {"sample_share": 0.3}],
    "fedavg_ft": [{"finetune": "head"}, {"finetune_epochs": 1}],
    "fedbabu": [{"finetune": "all"}],
    "fedlda": [
        {"penalty_centering": "batch"},
        {"evaluated_body": "local", "penalty": 0.0},
        {"momentum": 0.0, "cov_ridge": 0.1},
        {"temperature": "cross_validated", "shrinkage": "oas"},
        {"temperature": "cross_validated", "statistics": "pooled"},
    ],
    "fedpac": [{"combine_heads": False}, {"penalty": 5.0, "head_epochs": 2}],
    "fedper": [{"finetune_epochs": 2}],
    "fedsr": [{"finetune_epochs": 2, "squared_norm": True, "samples": 2}],
    "fedproto": [{"prediction": "head"}, {"penalty": 0.0}],
    "fedrod": [{"variant": "hyper"}, {"onboard_epochs": 0}],
    "ifca": [{"clusters": 1}, {"clusters": 4}],
    "knn_per": [{"neighbors": 1, "mixing": 1.0}, {"neighbors": 3, "kernel_scale": 0.1}],
    "lg_fedavg": [{"shared_layers": 2}, {"finetune_epochs": 2}],
    "moon": [{"penalty": 5.0, "temperature": 0.1}],
    "perfedavg": [{"variant": "first_order", "adapt_steps": 3}, {"inner_lr": 0.1}],
    "pfedbayes": [{"draws": 2, "mixing": 0.5}],
    "pfedfda": [
        {"beta": "multi"},
        {"beta": "none"},
        {"evaluate_drop_last": True},
        {"temperature": "cross_validated", "shrinkage": "oas"},
        {"temperature": "cross_validated", "statistics": "pooled"},
    ],
    "pfedvem": [
        {"confidence": "uncertainty"},
        {
            "confidence": "deviation",
            "head_lr": 1e-5,
            "head_steps": 1,
        },  # a lone client is at the global head: more diverge
        {"prediction_draws": 3, "evaluated_body": "global"},
        {"onboard_body": True, "onboard_rounds": 2},
    ],
}
"""Options worth trying besides the defaults."""


@settings(
    max_examples=40 if FULL else 2,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.parametrize("algorithm", ALGORITHMS if FULL else ("fedavg", "pfedfda", "scaffold"))
def test_any_federation(algorithm, data):
    options = data.draw(st.sampled_from([{}, *VARIANTS.get(algorithm, [])]))
    fewer = {} if FULL else FEWER.get(algorithm, {})
    one = ALGORITHMS[algorithm](training=data.draw(trainings), **{**fewer, **options})
    new_sizes = st.lists(st.sampled_from([0, 1, 5]), max_size=2)
    clients = make_federation(perceptron(), data.draw(sizes), data.draw(new_sizes))
    engine = Padded(Batched(data.draw(st.sampled_from([1, 2, 32]))))
    protocol = {
        "participation": data.draw(plans),
        "seed": data.draw(st.integers(0, 9)),
        "train": data.draw(
            st.sampled_from(
                ["auto", "cohort"] if one.requires_upload else ["auto", "all", "cohort"]
            )
        ),
    }
    expected = run(one, Reference(), clients, **protocol)
    found = run(one, engine, clients, **protocol)
    assert_close_runs(expected, found, tolerance=1e-11)
    assert [report.events for report in expected.reports] == [
        report.events for report in found.reports
    ]
