"""Runs made up for tests: answers of a model whose true temperature is known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ballot import Decision, Option, Scoring
from ballot.quality.examples import Example
from ballot.quality.runs import Manifest, Row, Run, Served, Settings, open_run
from ballot.results import ModelIdentity, Result
from ballot.wire import Fields
from tests.scripted_endpoint import MODEL, RESULT

SERVED = Served(
    model=ModelIdentity.of(Fields(MODEL, "model")),
    prompt_version="direct-options-v1",
    layout="evidence_first",
    orders=1,
    calibration_sha256=None,
    readout="logits",
)


def softmax(logits: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    return tuple(weight / sum(weights) for weight in weights)


def row(
    number: int,
    logits: Sequence[float],
    expected: int,
    *,
    kind: str = "choice",
    group: str | None = None,
    mass: float = 1.0,
) -> Row:
    """Return an answered example; option i is called `oi`."""
    ids = tuple(f"o{index}" for index in range(len(logits)))
    return Row(
        id=f"e{number}",
        kind=kind,
        family=None,
        group=group,
        option_ids=ids,
        expected=ids[expected],
        probabilities=softmax(logits),
        option_logits=tuple(logits),
        allowed_token_mass=mass,
        input_tokens=10,
        cached_tokens=0,
        client_seconds=0.1,
        container_seconds=0.1,
        orders=(),
        orders_agree=None,
        prompt_version=SERVED.prompt_version,
    )


def drawn_rows(
    count: int,
    *,
    temperature: float,
    seed: int,
    kind: str = "choice",
    options: Sequence[int] = (3,),
    first: int = 0,
) -> list[Row]:
    """Return rows whose right options are drawn from the softmax at `temperature`."""
    draw = random.Random(seed)
    rows = []
    for number in range(first, first + count):
        logits = [draw.gauss(0, 2) for _ in range(draw.choice(options))]
        (expected,) = draw.choices(range(len(logits)), softmax(logits, temperature))
        rows.append(row(number, logits, expected, kind=kind))
    return rows


def surely_rows(count: int, *, seed: int, mass: float = 1.0) -> list[Row]:
    """Return rows of two options, right with just the confidence that they say: 0.5 to 1."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        confidence = draw.uniform(0.5, 1)
        logits = (math.log(confidence / (1 - confidence)), 0.0)
        rows.append(row(number, logits, int(draw.random() > confidence), mass=mass))
    return rows


def run_of(rows: Sequence[Row], *, served: Served = SERVED) -> Run:
    manifest = Manifest(ballot_version="0.1.0", settings=settings_of(rows), served=served)
    return Run(folder=Path("run"), manifest=manifest, rows=tuple(rows), failures=())


def settings_of(rows: Sequence[Row]) -> Settings:
    return Settings(
        data_name="data.jsonl",
        data_sha256="d" * 64,
        mapping_sha256=None,
        examples=len(rows),
        target_kind="url",
        target="http://127.0.0.1:8080",
        scoring=Scoring(),
        concurrency=1,
    )


def write_run(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the folder that `ballot evaluate` would, of answers that come to be these rows."""
    with open_run(folder, settings_of(rows)) as record:
        for index, item in enumerate(rows):
            options = [Option(id, id) for id in item.option_ids]
            example = Example(
                id=item.id,
                decision=Decision(item.id, "s", "q?", options),
                expected=item.expected,
                kind=item.kind,
                group=item.group,
            )
            record.keep_result(index, example, result_of(item), 0.1)
    return folder


def result_of(item: Row, **fields: Any) -> Result:
    """Return the answer that a row is of."""
    answer = {
        **RESULT,
        "id": item.id,
        "option_ids": list(item.option_ids),
        "probabilities": list(item.probabilities),
        "option_logits": list(item.option_logits),
        "answer_token_ids": list(range(len(item.option_ids))),
        "allowed_token_mass": item.allowed_token_mass,
        **({"orders": [*map(asdict, item.orders)], "orders_agree": True} if item.orders else {}),
        **fields,
    }
    answer = json.loads(json.dumps(answer))
    return Result.from_answer(Fields(answer, "result"))
