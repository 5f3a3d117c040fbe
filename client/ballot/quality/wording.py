"""Figures in words, for every place where people read them."""

from __future__ import annotations

from collections.abc import Iterator

from ballot.quality.examples import NATIVE
from ballot.quality.figures import LOW_MASS, Calibration, Group, Mass, Orders, Report
from ballot.quality.runs import Served
from ballot.quality.statistics import Mean, Share

NOTHING = "-"


def percent(value: float | None) -> str:
    """Return a share of 1 in percent."""
    return NOTHING if value is None else f"{value * 100:.1f} %"


def interval(share: Share) -> str:
    """Return the interval of a share in percent."""
    return f"{share.low * 100:.1f} to {share.high * 100:.1f} %"


def count_of(share: Share) -> str:
    """Return how many of how many."""
    return f"{share.count:,} of {share.total:,}"


def number(value: float | None) -> str:
    """Return a figure without a unit."""
    return NOTHING if value is None else f"{value:.3f}"


def mean_interval(mean: Mean) -> str:
    """Return the interval of a mean."""
    if mean.low is None or mean.high is None:
        return "no interval"
    return f"{mean.low:.3f} to {mean.high:.3f}"


def seconds(value: float | None) -> str:
    """Return a duration to three digits."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def served_line(served: Served | None) -> str:
    """Return who answered, and how, in a line."""
    if served is None:
        return "nobody answered"
    model, orders = served.model, "1 order" if served.orders == 1 else f"{served.orders} orders"
    where = f"{model.gpu_layers} layers on the GPU" if model.gpu_layers else "CPU"
    parts = [model.file, where, served.layout or served.prompt_version, orders]
    if served.calibration_sha256:
        parts.append(f"calibration {served.calibration_sha256[:8]}")
    return ", ".join(parts)


def findings(report: Report) -> Iterator[str]:
    """Yield what the figures say, a sentence or two for each thing that matters."""
    if not report.accuracy.total:
        yield "The run has no examples."
        return
    yield (
        f"{percent(report.accuracy.value)} of {report.accuracy.total:,} examples are answered "
        f"right; the 95 % interval, which narrows with more examples, is "
        f"{interval(report.accuracy)}."
    )
    if report.guessing is not None:
        yield _on_guessing(report.accuracy, report.guessing)
    if missing := report.answered.total - report.answered.count:
        yield f"No valid answer came for {_examples(missing)}; that counts as wrong."
    if report.mean_confidence is not None:
        yield from _on_calibration(report.calibration, report.mean_confidence)
    if notice := entries_notice(report):
        yield notice
    if report.orders:
        yield _on_orders(report.orders)
    if weakest := _weakest(report.by_family):
        yield (
            f"The weakest family is {weakest.name}: {percent(weakest.correct.value)} of "
            f"{_examples(weakest.correct.total)}, {interval(weakest.correct)}."
        )
    if report.mass and report.mass.low.count:
        yield _on_mass(report.mass)


def entries_notice(report: Report) -> str | None:
    """Return which entries of the endpoint's calibration are left out, if it has one.

    Examples are asked as native decisions, also those that are System One questions.
    """
    served = report.manifest.served
    kinds = [group.name for group in report.by_kind if group.name != NATIVE]
    if served is None or served.calibration_sha256 is None or not kinds:
        return None
    named = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    return (
        f"The calibration's entries for {named} were not applied: examples are asked as native "
        f"decisions, which use the entries for {NATIVE}, else any."
    )


def _on_guessing(accuracy: Share, guessing: float) -> str:
    if accuracy.low > guessing:
        return f"A guess among the options would be right in {percent(guessing)}."
    return f"That is not shown to be better than a guess, which is right in {percent(guessing)}."


def _on_calibration(calibration: Calibration, confidence: float) -> Iterator[str]:
    error, chance = calibration.error, calibration.error_by_chance
    assert error is not None
    assert chance is not None
    answers = sum(one.correct.total for one in calibration.bins)
    right = sum(one.correct.count for one in calibration.bins) / answers
    said = f"confidence is {percent(confidence)} on average, and {percent(right)} are right"
    if error <= chance:
        yield (
            f"Confidences show no fault that {answers:,} answers could tell from chance: the "
            f"calibration error of {error:.3f} is under {chance:.3f}; {said}."
        )
        return
    way = "too high" if confidence > right else "too low"
    if abs(confidence - right) < error / 2:
        way = "too high in places and too low in others"
    yield (
        f"Confidences are {way}: {said}. The calibration error of {error:.3f} is more than the "
        f"{chance:.3f} that chance explains; fit a calibration before reading them as chances."
    )


def _on_orders(orders: Orders) -> str:
    return (
        f"Reversing the options changes {count_of(orders.flips)} answers "
        f"({percent(orders.flips.value)}). Accuracy is {percent(orders.correct_as_declared.value)} "
        f"as declared, {percent(orders.correct_reversed.value)} reversed, "
        f"{percent(orders.correct_averaged.value)} averaged."
    )


def _on_mass(mass: Mass) -> str:
    return (
        f"{count_of(mass.low)} answers have a token mass under {LOW_MASS}: the model was about to "
        "write something other than an option."
    )


def _weakest(groups: tuple[Group, ...]) -> Group | None:
    """Return the group with the lowest accuracy, where there is a choice."""
    if len(groups) < 2:
        return None
    return min(groups, key=lambda group: (group.correct.value or 0.0, group.name))


def _examples(count: int) -> str:
    return "1 example" if count == 1 else f"{count:,} examples"
