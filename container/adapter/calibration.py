"""A calibration: what turns raw logits into probabilities that can be believed.

That is temperatures and, for one option order, what the model favours each place in a list by.
`ballot calibrate` fits both on labelled decisions and writes them to a small JSON file that is
bound to what was measured: a model, a prompt version, a layout and a number of option orders.
docs/quality.md has what it is worth.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from adapter import strict_json
from adapter.decision import KINDS, LAYOUTS, ORDERS, Json, Scoring, kind_of
from adapter.errors import InvalidRequest, StartupError
from adapter.prompt import PROMPT_VERSIONS
from adapter.scorer import Applied, Scored, softmax

VERSION = 1
ANY_KIND = "any"
# Beyond these, what is left of the logits is a coin or the largest of them.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
_KEYS = (
    "version",
    "model_sha256",
    "prompt_version",
    "layout",
    "orders",
    "temperatures",
    "fitted",
)
_MOST_OPTIONS = 255
# A model that favours a place by more than this in a logarithm is not to be mended.
_MOST_LOG_PRIOR = 50.0
_SHA256_DIGITS = 64

Choice = TypeVar("Choice", int, str)


@dataclass(frozen=True)
class Temperature:
    """What the logits of some decisions are divided by: those of a kind, with so many options."""

    kind: str
    fewest_options: int
    most_options: int
    value: float

    def fits(self, kind: str, options: int) -> bool:
        """Return whether it was fitted for decisions of `kind` with so many options."""
        return self.kind == kind and self.fewest_options <= options <= self.most_options


@dataclass(frozen=True)
class Prior:
    """The logarithm to take off the logit of each place in a list of as many options."""

    kinds: tuple[str, ...]
    places: tuple[float, ...]

    def fits(self, kind: str, options: int) -> bool:
        """Return whether it was fitted on decisions of `kind` with so many options."""
        return kind in self.kinds and len(self.places) == options


@dataclass(frozen=True)
class Calibration:
    """Temperatures and priors, what they are bound to, and the SHA-256 of their file."""

    sha256: str
    model_sha256: str
    prompt_version: str
    scoring: Scoring
    temperatures: tuple[Temperature, ...]
    priors: tuple[Prior, ...]

    def apply(self, scored: Scored, *, kind: str, scoring: Scoring) -> Scored:
        """Return `scored` with calibrated probabilities; its logits stay raw.

        Where nothing was fitted for its kind and number of options, the temperature is 1. What was
        scored in another layout or number of orders is returned as it is, uncalibrated.
        """
        if scoring != self.scoring:
            return scored
        options = len(scored.option_logits)
        temperature, prior = self._temperature(kind, options), self._prior(kind, options)
        applied = Applied(self.sha256, temperature, position_prior=prior is not None)
        if temperature == 1 and prior is None:
            return replace(scored, calibration=applied)
        # Of two orders the logits are means, whose softmax is that of the averaged
        # log-probabilities: they differ in a constant alone.
        logits = scored.option_logits
        if prior is not None:
            logits = tuple(logit - place for logit, place in zip(logits, prior, strict=True))
        return replace(scored, probabilities=softmax(logits, temperature), calibration=applied)

    def check_bound(self, *, model_sha256: str, scoring: Scoring) -> None:
        """Check that it was fitted on what is served here.

        Raises:
            StartupError: naming each field that differs.
        """
        here = {
            "model_sha256": (self.model_sha256, model_sha256),
            "prompt_version": (self.prompt_version, PROMPT_VERSIONS[scoring.layout]),
            "layout": (self.scoring.layout, scoring.layout),
            "orders": (self.scoring.orders, scoring.orders),
        }
        differences = [
            f"{name} is {bound}, here {served}"
            for name, (bound, served) in here.items()
            if bound != served
        ]
        if differences:
            raise StartupError(
                f"the calibration is bound to something else ({'; '.join(differences)}); fit one "
                "for what is served here, or unset BALLOT_CALIBRATION"
            )

    def _temperature(self, kind: str, options: int) -> float:
        """Return the narrowest temperature that fits: of the kind before any, of fewest counts."""
        for wanted in (kind, ANY_KIND):
            fitting = [item for item in self.temperatures if item.fits(wanted, options)]
            if fitting:
                return min(fitting, key=lambda item: item.most_options - item.fewest_options).value
        return 1.0

    def _prior(self, kind: str, options: int) -> tuple[float, ...] | None:
        return next((item.places for item in self.priors if item.fits(kind, options)), None)


class _NoCalibration(ValueError):
    """What is read is no calibration; the text names the first wrong field."""


def read_calibration(source: str) -> Calibration:
    """Read a calibration: the file that `source` names, or `source` itself where that is JSON.

    White space around the JSON is no part of it, nor of its SHA-256.

    Raises:
        StartupError: it cannot be read, or is no calibration; naming the first wrong field.
    """
    text = (source if source.startswith("{") else _read_file(Path(source))).strip()
    try:
        return _calibration(strict_json.parse(text.encode()), text)
    except (InvalidRequest, _NoCalibration) as error:
        where = "its JSON" if source.startswith("{") else source
        raise StartupError(
            f"BALLOT_CALIBRATION, {where}, is no calibration ({error}); set it to what "
            "`ballot calibrate` wrote"
        ) from None


def _read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise StartupError(
            f"BALLOT_CALIBRATION {path} cannot be read ({error}); set it to a file that "
            "`ballot calibrate` wrote"
        ) from error


def _calibration(value: Json, text: str) -> Calibration:
    fields = _object(value, "the calibration", _KEYS, optional=("priors",))
    _one_of(fields["version"], "version", (VERSION,))
    scoring = Scoring(
        layout=_one_of(fields["layout"], "layout", LAYOUTS),
        orders=_one_of(fields["orders"], "orders", ORDERS),
    )
    priors = _priors(fields.get("priors", []))
    temperatures = _temperatures(fields["temperatures"])
    if priors and scoring.orders != 1:
        raise _NoCalibration("priors are for one order alone")
    if not (priors or temperatures):
        raise _NoCalibration("it has neither temperatures nor priors")
    return Calibration(
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        model_sha256=_sha256(fields["model_sha256"], "model_sha256"),
        prompt_version=_text(fields["prompt_version"], "prompt_version"),
        scoring=scoring,
        temperatures=temperatures,
        priors=priors,
    )


def _priors(value: Json) -> tuple[Prior, ...]:
    priors = tuple(
        _prior(item, f"priors[{index}]") for index, item in enumerate(_items_of(value, "priors"))
    )
    if len({len(prior.places) for prior in priors}) < len(priors):
        raise _NoCalibration("priors has a number of options twice")
    return priors


def _prior(value: Json, path: str) -> Prior:
    fields = _object(value, path, ("options", "log_prior"), optional=("kinds",))
    # A file from before priors named their kinds has them for all.
    kinds = _items_of(fields.get("kinds", list(KINDS)), f"{path}.kinds")
    places = _items_of(fields["log_prior"], f"{path}.log_prior")
    if not 2 <= len(places) <= _MOST_OPTIONS or fields["options"] != len(places):
        raise _NoCalibration(f"{path}.log_prior must have one number for each of its options")
    return Prior(
        kinds=tuple(
            _one_of(kind, f"{path}.kinds[{index}]", KINDS) for index, kind in enumerate(kinds)
        ),
        places=tuple(
            _number(place, f"{path}.log_prior[{index}]", -_MOST_LOG_PRIOR, _MOST_LOG_PRIOR)
            for index, place in enumerate(places)
        ),
    )


def _temperatures(value: Json) -> tuple[Temperature, ...]:
    return tuple(
        _temperature(item, f"temperatures[{index}]")
        for index, item in enumerate(_items_of(value, "temperatures"))
    )


def _temperature(value: Json, path: str) -> Temperature:
    fields = _object(value, path, ("kind", "options", "temperature"))
    fewest, most = _band(fields["options"], f"{path}.options")
    return Temperature(
        kind=_one_of(fields["kind"], f"{path}.kind", (*KINDS, ANY_KIND)),
        fewest_options=fewest,
        most_options=most,
        value=_number(
            fields["temperature"], f"{path}.temperature", LEAST_TEMPERATURE, MOST_TEMPERATURE
        ),
    )


def _band(value: Json, path: str) -> tuple[int, int]:
    match value:
        case [int(fewest), int(most)] if 2 <= fewest <= most <= _MOST_OPTIONS:
            return fewest, most
    raise _NoCalibration(f"{path} must be two whole numbers from 2 to {_MOST_OPTIONS}, in order")


def _number(value: Json, path: str, lowest: float, highest: float) -> float:
    match value:
        case bool():
            pass
        case int() | float() if lowest <= value <= highest:
            return float(value)
    raise _NoCalibration(f"{path} must be a number from {lowest:g} to {highest:g}")


def _sha256(value: Json, path: str) -> str:
    text = _text(value, path)
    if len(text) != _SHA256_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise _NoCalibration(f"{path} must be 64 lower-case hexadecimal digits")
    return text


def _text(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise _NoCalibration(f"{path} must be a string, not {kind_of(value)}")
    return value


def _one_of(value: Json, path: str, allowed: tuple[Choice, ...]) -> Choice:
    # bool is an int in Python, and 1.0 equals 1: only the very type is the declared value.
    for choice in allowed:
        if type(value) is type(choice) and value == choice:
            return choice
    raise _NoCalibration(f"{path} must be one of: {', '.join(map(str, allowed))}")


def _items_of(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise _NoCalibration(f"{path} must be an array, not {kind_of(value)}")
    return value


def _object(
    value: Json, path: str, keys: tuple[str, ...], *, optional: tuple[str, ...] = ()
) -> dict[str, Json]:
    """Return an object that has each of `keys`, and no other than these and the optional ones."""
    if not isinstance(value, dict):
        raise _NoCalibration(f"{path} must be an object, not {kind_of(value)}")
    missing = [key for key in keys if key not in value]
    unknown = value.keys() - {*keys, *optional}
    if missing:
        raise _NoCalibration(f"{path} has no {missing[0]}")
    if unknown:
        raise _NoCalibration(f"{path} has {min(unknown)[:80]!r}, which is not known")
    return value
