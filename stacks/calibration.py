"""The calibration of an endpoint: read at synth, and checked against what it is to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.calibration_content import faults, parse
from stacks.reading import Format, Section, shown

LAYOUTS = ("evidence_first", "criterion_first")
ORDERS = (1, 2)
# The prompt versions of the adapter that is built with these stacks.
PROMPT_VERSIONS = {
    "evidence_first": "direct-options-v1",
    "criterion_first": "criterion-first-v1",
}
VERSION = 1
# What SageMaker takes as the value of a container's environment variable.
MOST_CHARACTERS = 1024
PATH = Format(pattern=r"[^\0]+", words="the path of a file that `ballot calibrate` wrote")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an endpoint serves, as far as a calibration is bound to it."""

    model_sha256: str
    layout: str
    orders: int

    def bound(self) -> dict[str, object]:
        """Return what a calibration of it says."""
        return {
            "model_sha256": self.model_sha256,
            "prompt_version": PROMPT_VERSIONS[self.layout],
            "layout": self.layout,
            "orders": self.orders,
        }


def read_calibration(section: Section, key: str, served: Served, *, folder: Path) -> str | None:
    """Return the text of the calibration that a setting names by its path from `folder`.

    The container is given the text itself: it reaches no network, and what the model's artifact
    holds stays what its checksum says. The adapter, which knows the model, checks it once more.
    """
    path = section.text(key, PATH)
    if not path:
        return None
    try:
        text = (folder / path).read_text("utf-8").strip()
        content = parse(text)
    except (OSError, ValueError, RecursionError) as error:
        section.refuse(key, f"cannot be read as JSON: {_reason(error)}")
        return None
    for problem in _problems(text, content, served):
        section.refuse(key, problem)
    return text


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _problems(text: str, content: Any, served: Served) -> list[str]:
    if not isinstance(content, Mapping) or not _is(content.get("version"), VERSION):
        return [f"is no calibration of version {VERSION}, which `ballot calibrate` writes"]
    problems = [
        f"is bound to something else: its {name} is {shown(content.get(name))}, the endpoint's is "
        f"{shown(value)}"
        for name, value in served.bound().items()
        if not _is(content.get(name), value)
    ]
    if fault := next(faults(content), None):
        problems.append(f"is no calibration: {fault}")
    if len(text) > MOST_CHARACTERS:
        problems.append(
            f"has {len(text)} characters; a container's variable holds {MOST_CHARACTERS}: write it "
            "without white space, and with fewer bands of option counts"
        )
    return problems


def _is(found: object, value: object) -> bool:
    # true and 1.0 equal 1; the adapter takes only the very type.
    return type(found) is type(value) and found == value
