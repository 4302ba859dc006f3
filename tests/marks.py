"""Which cases of a test run in `make test`, and which in `make test-all` only."""

import pytest


def quick(values, *chosen):
    """Return the values as parameters, of which those that are not chosen are slow.

    A tuple holds one value for each argument of the test. A ``pytest.param`` is chosen by its id.
    """
    cases = [_marked(value, chosen) for value in values]
    are_slow = [pytest.mark.slow in getattr(case, "marks", ()) for case in cases]
    assert not all(are_slow), f"none of {chosen} is a case, so nothing runs in make test"
    return cases


def slow(*values, id=None):
    """Return a slow case: a value for each argument of the test."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def _marked(value, chosen):
    """Return one value, as a slow case if it is not chosen."""
    if isinstance(value, type(pytest.param())):
        marks = value.marks if value.id in chosen else (*value.marks, pytest.mark.slow)
        return pytest.param(*value.values, marks=marks, id=value.id)

    if value in chosen:
        return value
    return slow(*value) if isinstance(value, tuple) else slow(value)
