"""docs/metrics.md against what a live adapter exposes: names, types and labels, both ways."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.adapter_process import ROOT
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model
from tests.test_bad_input import DECISION, JSON
from tests.test_calibration import Tiny
from tests.test_json_lines import LINES, dump
from tests.test_systemone import CHOICE, NOUL, SCORE
from tests.test_systemone import body as questions
from tests.wire import documented_errors

PAGE = (ROOT / "docs" / "metrics.md").read_text()
_ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\| (?P<unit>[^|]+) \|", re.M
)
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
# What prometheus_client tells of any Python process.
COMMON = ("python_", "process_")


@dataclass(frozen=True)
class Described:
    """A metric as the page, or an exposition, has it."""

    type: str
    labels: frozenset[str]


def documented() -> dict[str, Described]:
    return {
        row["name"]: Described(row["type"], frozenset(re.findall(r"`(\w+)`", row["labels"])))
        for row in _ROW.finditer(PAGE)
    }


def exposed(text: str) -> dict[str, Described]:
    """The adapter's own metrics, under the names that stand in the exposition."""
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in types else _SUFFIX.sub("", sample.name)
            labels[name] |= sample.labels.keys() - {"le"}
    return {
        name: Described(kind, frozenset(labels[name]))
        for name, kind in types.items()
        if not name.startswith(COMMON)
    }


def samples(client: httpx.Client, name: str) -> dict[Any, float]:
    """The samples of that name, by their labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sorted(sample.labels.items())): sample.value for sample in found}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path: Path = tmp_path_factory.mktemp("metrics") / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)
    return Tiny(path, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def fresh(tiny: Tiny) -> Iterator[httpx.Client]:
    """A client of an adapter that has counted nothing yet."""
    with tiny.adapter().wait_ready() as adapter, adapter.client() as client:
        yield client


def test_the_page_and_the_exposition_have_the_same_metrics(fresh: httpx.Client) -> None:
    fresh.post("/invocations", content=dump({"decision": DECISION}), headers=JSON)
    fresh.post("/invocations", content=b"{}\n", headers=LINES)
    response = fresh.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=")
    assert exposed(response.text) == documented()


def test_the_pages_queries_name_metrics_that_are_there(fresh: httpx.Client) -> None:
    queries = re.findall(r"^```promql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    used = set(re.findall(r"ballot_\w+", "".join(queries)))
    there = exposed(fresh.get("/metrics").text)

    assert len(queries) > 3
    assert {_SUFFIX.sub("", name) for name in used} <= there.keys()
    # A histogram is read by its parts, and nothing else is.
    assert {name for name in used if _SUFFIX.search(name)} == {
        name for name in used if there[_SUFFIX.sub("", name)].type == "histogram"
    }


def test_decisions_are_counted_by_kind_with_their_tokens_and_masses(fresh: httpx.Client) -> None:
    single = {"decision": DECISION, "scoring": {"orders": 2}}
    several = {"decisions": [DECISION, {**DECISION, "id": "e"}]}
    asked = questions(NOUL, CHOICE, CHOICE, SCORE)
    one = fresh.post("/invocations", json=single).json()["result"]
    two = fresh.post("/invocations", json=several).json()["results"]
    answers = fresh.post("/v1/systemone", json=asked).json()
    lines = fresh.post("/invocations", content=dump(single) + b"\n{}\n\n", headers=LINES)
    in_line = json.loads(lines.text.splitlines()[0])
    results = [one, *two, in_line["result"]]
    masses = [result["allowed_token_mass"] for result in results]
    masses += [answer["x_allowed_token_mass"] for answer in answers["answers"].values()]

    assert samples(fresh, "ballot_decisions_total") == {
        (("kind", "native"),): 4,
        (("kind", "noul"),): 1,
        (("kind", "choice"),): 2,
        (("kind", "score"),): 1,
    }
    tokens = sum(result["input_tokens"] for result in results) + answers["usage"]["input_tokens"]
    assert samples(fresh, "ballot_input_tokens_total") == {(): tokens}
    assert samples(fresh, "ballot_allowed_token_mass_count") == {(): 8}
    assert samples(fresh, "ballot_allowed_token_mass_sum")[()] == pytest.approx(sum(masses))
    assert samples(fresh, "ballot_allowed_token_mass_bucket")[(("le", "0.01"),)] == sum(
        mass <= 0.01 for mass in masses
    )
    assert samples(fresh, "ballot_lines_total") == {
        (("outcome", "ok"),): 1,
        (("outcome", "missing_field"),): 1,
        (("outcome", "empty_line"),): 1,
    }
    requests = samples(fresh, "ballot_requests_total")
    assert requests[(("outcome", "ok"), ("route", "/invocations"))] == 3
    assert requests[(("outcome", "ok"), ("route", "/v1/systemone"))] == 1
    # What decoded and what was reused are all tokens of all prompts: nothing was given up here.
    parts = ("ballot_tokens_decoded_total", "ballot_tokens_reused_total")
    assert sum(samples(fresh, name)[()] for name in parts) == tokens


def test_no_caller_can_make_up_a_label(fresh: httpx.Client) -> None:
    for number in range(50):
        fresh.request(f"BREW{number}", f"/{number}")
        fresh.post("/invocations", content=dump({f"x{number}": 1}), headers=JSON)
        fresh.post("/invocations", content=dump({f"x{number}": 1}), headers=LINES)
    routes = {dict(labels)["route"] for labels in samples(fresh, "ballot_requests_total")}
    outcomes = {dict(labels)["outcome"] for labels in samples(fresh, "ballot_requests_total")}
    outcomes |= {dict(labels)["outcome"] for labels in samples(fresh, "ballot_lines_total")}

    assert routes <= {"/ping", "/invocations", "/metrics", "other"}
    assert {"other", "/invocations"} <= routes
    assert outcomes <= {"ok", "caller_gone", *documented_errors()}
    assert {"not_found", "unknown_field"} <= outcomes
