"""All fuzz targets by name."""

from __future__ import annotations

from tests.fuzz import files, wires

TARGETS = {target.name: target for target in (*wires.TARGETS, *files.TARGETS)}
