"""Checks that gradient steps are counted, and that the use of a client's data is declared."""

from __future__ import annotations

from fedtailor.core.adaptation import describe
from fedtailor.testing.case import Case, Check

_HINT = 'Return metrics={"steps": trained.steps, ...}, the sum over all phases of training'


def check_steps(case: Case) -> str | None:
    """The gradient steps are reported: tables compare what methods spend."""
    for report in case.base().reports:
        steps = report.metrics.get("steps", {})
        for client in sorted(set(report.trained) - set(steps)):
            return (
                f"{case.place(report.round, client)}: local_update reports no metric "
                f"'steps'. {_HINT}."
            )

        for client, count in steps.items():
            if count < 0 or count != int(count):
                return (
                    f"{case.place(report.round, client)}: metric 'steps' is {count:g}, which "
                    f"is not a number of steps. {_HINT}."
                )

    # More than train took is possible: a custom step may count its gradients.
    for reported, taken in case.spied.observed.steps["local_update"]:
        if 0 <= reported < taken and reported == int(reported):
            return (
                f"local_update reports {reported:g} as metric 'steps', but train took {taken} "
                f"steps. {_HINT}."
            )

    return None


def check_adaptation(case: Case) -> str | None:
    """The use of a client's data is declared, and onboarding counts its steps."""
    algorithm = case.algorithm
    steps = case.spied.observed.steps
    hint = (
        'override the property, for example with [FineTuning("head", epochs=5)]; tables of results '
        "show it"
    )
    # The most of all calls: a client without examples takes no step.
    personalizing = max((taken for _, taken in steps["personalize"]), default=0)
    if personalizing > 0 and describe(algorithm.adaptation) == "none":
        return (
            f"personalize trains on a client's data ({personalizing} steps), but adaptation is "
            f"empty: {hint}."
        )

    reported = max((count for count, _ in steps["onboard"]), default=0)
    taken = max((count for _, count in steps["onboard"]), default=0)
    onboarding = max(reported, taken)
    if onboarding > 0 and describe(algorithm.onboarding) == "none":
        return (
            f"onboard trains on a client's data ({onboarding:g} steps), but onboarding is empty: "
            f"{hint}."
        )
    if reported < taken and not case.new_clients_fail:
        return (
            f"onboard returns {reported:g} steps, but train took {taken}. Return Onboarded(state, "
            "trained.steps)."
        )

    return None


CHECKS: tuple[Check, ...] = (check_steps, check_adaptation)
