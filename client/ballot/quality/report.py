"""A run's report: `report.json` and `report.html` in the run's folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ballot.quality.figures import Report, report_of
from ballot.quality.page import page
from ballot.quality.runs import Run

JSON_FILE, HTML_FILE = "report.json", "report.html"


def write_report(run: Run, *, hourly_price: float | None = None) -> Report:
    """Write a run's report into its folder, in place of an earlier one, and return it.

    The same answers give the same bytes.

    Raises:
        OSError: the folder cannot be written.
    """
    report = report_of(run, hourly_price=hourly_price)
    _write(run.folder / JSON_FILE, report_json(report))
    _write(run.folder / HTML_FILE, page(report))
    return report


def report_json(report: Report) -> str:
    """Return every figure as JSON."""
    fields = {**asdict(report), "manifest": report.manifest.as_json()}
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all; half a surrogate pair of a broken id as its escape."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_bytes(text.encode(errors="backslashreplace"))
    unfinished.replace(path)
