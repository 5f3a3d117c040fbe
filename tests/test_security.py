"""docs/security.md: every test that it calls a proof is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.adapter_process import ROOT

PAGE = (ROOT / "docs/security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/test_\w+\.py::[\w:]+)`", PAGE)))
ROWS = [line for line in PAGE.partition("\n## What the adapter")[0].splitlines() if "|" in line][2:]


def names_in(file: str) -> set[str]:
    """Return the tests of a file, those of classes behind their class's name."""
    found = set()
    for item in ast.parse((ROOT / file).read_text("utf-8")).body:
        inner = item.body if isinstance(item, ast.ClassDef) else [item]
        prefix = f"{item.name}::" if isinstance(item, ast.ClassDef) else ""
        found |= {f"{prefix}{part.name}" for part in inner if isinstance(part, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("name", NAMED)
def test_the_test_that_is_named_is_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert test.rpartition("::")[2].startswith("test_")
    assert test in names_in(file)


def test_every_threat_has_a_proof_but_the_one_that_cannot() -> None:
    without = [row for row in ROWS if "`tests/test_" not in row]
    assert len(ROWS) > 20
    assert [row.split("|")[2].strip() for row in without] == ["persuades the model"]


def test_all_that_is_named_like_a_test_is_checked() -> None:
    assert len(re.findall(r"tests/test_\w+\.py::", PAGE)) == sum(
        PAGE.count(f"`{name}`") for name in NAMED
    )


def test_the_page_counts_the_attacks() -> None:
    attacks = (ROOT / "tests/data/adversarial-states.json").read_text().count('"id": ')
    assert f"has {attacks} attacks" in PAGE
