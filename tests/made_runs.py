"""Makes runs: of given answers, or of answers drawn at random from a model of known habits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ballot
from ballot.decision import Decision, Scoring
from ballot.errors import BallotError
from ballot.quality.examples import Example
from ballot.quality.runs import Failure, Manifest, Row, Run, Served, Settings, open_run
from ballot.results import ModelIdentity, OrderScores, Result
from ballot.wire import Fields
from tests.cli_process import MODEL, result

CHOICES = (("courier", "pickup", "post", "unknown"), ("cancel", "refund", "status", "other"))


def order(probabilities: Sequence[float], *, mass: float = 0.98) -> OrderScores:
    """Return scores in one order that come to these probabilities."""
    return OrderScores(
        probabilities=tuple(probabilities),
        option_logits=tuple(math.log(max(one, 1e-300)) for one in probabilities),
        answer_token_ids=tuple(range(32, 32 + len(probabilities))),
        input_tokens=143,
        cached_tokens=71,
        allowed_token_mass=mass,
        prompt_sha256="0" * 64,
    )


def row(
    id: str, option_ids: str, expected: str, probabilities: Sequence[float], **more: Any
) -> Row:
    """Return an answer; `option_ids` are words of a text, and `more` any fields."""
    scores = order(probabilities)
    fields: dict[str, Any] = {
        "kind": "native",
        "family": None,
        "group": None,
        "option_logits": scores.option_logits,
        "allowed_token_mass": scores.allowed_token_mass,
        "input_tokens": scores.input_tokens,
        "cached_tokens": scores.cached_tokens,
        "client_seconds": 0.5,
        "container_seconds": 0.4,
        "orders": (),
        "orders_agree": None,
        "prompt_version": "direct-options-v1",
        **more,
    }
    return Row(
        id=id,
        option_ids=tuple(option_ids.split()),
        expected=expected,
        probabilities=scores.probabilities,
        **fields,
    )


def failure(id: str, expected: str, **more: Any) -> Failure:
    """Return an example without an answer."""
    fields: dict[str, Any] = {
        "kind": "native",
        "family": None,
        "group": None,
        "client_seconds": 0.1,
        "code": "too_many_tokens",
        "message": "the prompt has 5000 tokens; the limit is 4096",
        "status": 413,
        "retryable": False,
        **more,
    }
    return Failure(id=id, expected=expected, **fields)


def run(
    rows: Sequence[Row],
    failures: Sequence[Failure] = (),
    *,
    folder: Path = Path("run"),
    data_name: str = "support.jsonl",
    data_sha256: str = "d" * 64,
    concurrency: int = 1,
    orders: int = 1,
) -> Run:
    """Return a finished run of these answers."""
    settings = Settings(
        data_name=data_name,
        data_sha256=data_sha256,
        mapping_sha256=None,
        examples=len(rows) + len(failures),
        target_kind="url",
        target="http://127.0.0.1:8080",
        scoring=Scoring(),
        concurrency=concurrency,
    )
    served = Served(
        model=ModelIdentity.of(Fields(MODEL, "model")),
        prompt_version="direct-options-v1",
        layout="evidence_first",
        orders=orders,
        calibration_sha256=None,
        readout="quantized last-position logits",
    )
    manifest = Manifest(
        ballot_version=ballot.__version__, settings=settings, served=served if rows else None
    )
    return Run(folder=folder, manifest=manifest, rows=tuple(rows), failures=tuple(failures))


def drawn_rows(count: int, *, seed: int, sharpness: float = 1.0, orders: int = 1) -> list[Row]:
    """Return answers of a model that says softmax(`sharpness` * z) where softmax(z) would be true.

    So with a sharpness of 1 it is calibrated, above that too confident.
    """
    draw = random.Random(seed)
    return [_drawn_row(draw, index, sharpness, orders) for index in range(count)]


def _drawn_row(draw: random.Random, index: int, sharpness: float, orders: int) -> Row:
    kind, family, options = draw.choice(
        [
            ("noul", "policy", ("no", "yes")),
            ("noul", "fact", ("no", "yes")),
            ("choice", "extraction", CHOICES[0]),
            ("choice", "intent", CHOICES[1]),
            ("score", "ordinal", ("0", "1", "2", "3")),
        ]
    )
    logits = [draw.gauss(0, 1.8) for _ in options]
    expected = draw.choices(options, softmax(logits))[0]
    said = [sharpness * one for one in logits]
    both = [
        order(softmax([one + draw.gauss(0, 0.5) for one in said]), mass=0.9 + draw.random() / 10)
        for _ in range(2 if orders == 2 else 0)
    ]
    tokens = round(80 * math.exp(draw.random() * 4))
    container = 0.02 + tokens * 0.0035 * draw.uniform(0.8, 1.2)
    return row(
        f"{family}-{index:03}",
        " ".join(options),
        expected,
        softmax(said),
        kind=kind,
        family=family,
        option_logits=tuple(said),
        allowed_token_mass=1 - draw.random() ** 6,
        input_tokens=tokens,
        client_seconds=container + 0.004 + draw.expovariate(100),
        container_seconds=container,
        orders=tuple(both),
        orders_agree=None if not both else True,
    )


def softmax(logits: Sequence[float]) -> list[float]:
    """Return the probabilities that logits come to."""
    highest = max(logits)
    weights = [math.exp(one - highest) for one in logits]
    total = math.fsum(weights)
    return [one / total for one in weights]


def written(made: Run, folder: Path) -> Path:
    """Write a run as `ballot evaluate` does, and return its folder."""
    with open_run(folder, made.manifest.settings) as record:
        for index, one in enumerate(made.rows):
            record.keep_result(index, _example(one), _result(one, made), one.client_seconds)
        for index, lost in enumerate(made.failures, start=len(made.rows)):
            error = BallotError(lost.message, code=lost.code, status=lost.status)
            seconds, again = lost.client_seconds, lost.retryable
            record.keep_error(index, _example(lost), error, seconds, retryable=again)
    return folder


def _example(one: Row | Failure) -> Example:
    decision = Decision(one.id, "", "", ())
    return Example(one.id, decision, one.expected, one.kind, one.family, one.group)


def _result(one: Row, made: Run) -> Result:
    served = made.manifest.served
    assert served is not None
    raw = result(
        one.id,
        dict(zip(one.option_ids, one.probabilities, strict=True)),
        mass=one.allowed_token_mass,
        option_logits=list(one.option_logits),
        input_tokens=one.input_tokens,
        cached_tokens=one.cached_tokens,
        prompt_version=one.prompt_version,
        model={**asdict(served.model), "backends": list(served.model.backends)},
        timing={
            "queue_seconds": 0.0,
            "forward_seconds": one.container_seconds,
            "total_seconds": one.container_seconds,
        },
    )
    if one.orders:
        raw |= {
            "orders": [
                {name: _plain(value) for name, value in asdict(scores).items()}
                for scores in one.orders
            ],
            "orders_agree": bool(one.orders_agree),
        }
    return Result.from_answer(Fields.of(json.loads(json.dumps(raw)), "result"))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
