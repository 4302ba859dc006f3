"""Comparison of the reports of two runs."""

from dataclasses import replace

from fedtailor.testing.runs import assert_same_bits


def assert_same_reports(found, expected):
    """Check that reports are equal: numbers bit for bit, all else as it is, only times may
    differ."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in (
            "round",
            "cohort",
            "trained",
            "metrics",
            "events",
            "bytes_up",
            "bytes_down",
            "steps",
        ):
            assert getattr(one, name) == getattr(other, name), name
        assert len(one.evaluations) == len(other.evaluations)
        for evaluation, same in zip(one.evaluations, other.evaluations, strict=True):
            assert replace(evaluation, scores=[]) == replace(same, scores=[])
            for scores, wanted in zip(evaluation.scores, same.scores, strict=True):
                assert_same_bits(scores, wanted)
        assert list(one.personal) == list(other.personal)
        for client, personal in one.personal.items():
            assert_same_bits(personal, other.personal[client])
        assert_same_bits(one.state.server, other.state.server)
        assert replace(one.state, server=()) == replace(other.state, server=())
