"""Checks that gradient steps are counted, and that use of a client's data is declared."""

from __future__ import annotations

from fedtailor.core.adaptation import describe
from fedtailor.testing.case import Case, Check

_HINT = 'Return metrics={"steps": trained.steps, ...}, the sum over all phases of training'


def check_steps(case: Case) -> str | None:
    """The gradient steps are reported, for the tables that compare methods by what they spend."""
    for report in case.base().reports:
        steps = report.metrics.get("steps", {})
        unused = {event["client"] for event in report.events if event["kind"] == "quarantine"}
        missing = sorted(set(report.cohort) - set(steps) - unused)
        if missing:
            return f"round {report.round}, {case.who(missing[0])}: local_update reports no metric 'steps'. {_HINT}."
        odd = [client for client, count in steps.items() if count < 0 or count != int(count)]
        if odd:
            where, value = f"round {report.round}, {case.who(odd[0])}", f"{steps[odd[0]]:g}"
            return f"{where}: metric 'steps' is {value}, which is no number of steps. {_HINT}."
    for said, taken in case.spied.notes["local_update steps"]:
        if 0 <= said < taken and said == int(said):
            return f"local_update reports {said:g} 'steps', but train took {taken}. {_HINT}."
    return None


def check_tuning(case: Case) -> str | None:
    """What personalize and onboard do with a client's data is declared, and onboarding counts its steps."""
    one, notes = case.algorithm, case.spied.notes
    personal = max((taken for _, taken in notes["personalize steps"]), default=0)
    if personal > 0 and describe(one.adaptation) == "none":
        return (
            f"personalize trains on a client's data ({personal} steps), but adaptation is empty: override the "
            'property, for example with [FineTuning("head", epochs=5)]. Tables show it.'
        )
    said, taken = (max(column, default=0) for column in zip(*notes["onboard steps"] or [(0, 0)], strict=True))
    if max(said, taken) > 0 and describe(one.onboarding) == "none":
        return (
            f"onboard trains on a client's data ({max(said, taken):g} steps), but onboarding is empty: override the "
            'property, for example with [FineTuning("head", epochs=5)]. Tables show it.'
        )
    if said < taken:
        return f"onboard returns {said:g} steps, but train took {taken}. Return Onboarded(state, trained.steps)."
    return None


CHECKS: tuple[Check, ...] = (check_steps, check_tuning)
