"""A run: labelled decisions that were asked of one endpoint, kept in a folder with every answer.

The folder has `manifest.json`, which says what was asked of whom and who answered, and
`answers.jsonl`: a line for each answer, as it came. What reads a run needs nothing else: neither
the data nor the endpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import ballot
from ballot.decision import Scoring
from ballot.errors import BallotError, InvalidAnswer
from ballot.quality.examples import Example
from ballot.results import ModelIdentity, OrderScores, Result
from ballot.wire import Fields

MANIFEST, ANSWERS = "manifest.json", "answers.jsonl"
_UNFINISHED_MANIFEST = "manifest.json.new"
_FORMAT = 1
# The layouts by what a prompt of each calls itself; docs/prompt.md has both.
_LAYOUTS = {"direct-options-v1": "evidence_first", "criterion-first-v1": "criterion_first"}


class RunError(BallotError):
    """A run's folder cannot be used: it is missing, broken, unfinished, or of another run."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of whom. A run goes on only with the same settings.

    `data_sha256` is of the file's bytes and `mapping_sha256` of the file that says what the columns
    of a CSV file mean; `examples` is how many are asked, the first ones. `target_kind` is
    `endpoint`, `url` or `model`, and `target` the name, the URL, or the file name of the GGUF.
    """

    data_name: str
    data_sha256: str
    mapping_sha256: str | None
    examples: int
    target_kind: str
    target: str
    scoring: Scoring
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class Served:
    """Who answered: the same for every answer of a run, but for `model.threads`.

    `layout` is None where this version of the client does not know the prompt's. The SHA-256 is
    that of the calibration which the endpoint applies, if any.
    """

    model: ModelIdentity
    prompt_version: str
    layout: str | None
    orders: int
    calibration_sha256: str | None
    readout: str

    @classmethod
    def of(cls, result: Result) -> Served:
        """Return who answered `result`."""
        calibration = result.calibration
        return cls(
            model=result.model,
            prompt_version=result.prompt_version,
            layout=_LAYOUTS.get(result.prompt_version),
            orders=max(1, len(result.orders)),
            calibration_sha256=calibration.sha256 if calibration else None,
            readout=result.readout,
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` says; `served` is None until something has been answered."""

    ballot_version: str
    settings: Settings
    served: Served | None

    @classmethod
    def from_json(cls, value: object) -> Manifest:
        """Read a manifest.

        Raises:
            InvalidAnswer: naming the first wrong field by its path.
        """
        fields = Fields.of(value, "manifest")
        if fields.whole("format") != _FORMAT:
            raise InvalidAnswer(f"manifest.format is not {_FORMAT}", code="invalid_answer")
        return cls(
            ballot_version=fields.text("ballot_version"),
            settings=_settings(fields.object("settings")),
            served=None if fields.values.get("served") is None else _served(fields),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the manifest as its file has it."""
        return {"format": _FORMAT, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """An answered example. Numbers by option stand in the order of `option_ids`.

    `option_ids` are in the order in which the decision declares them, and `expected` is one of
    them. `probabilities` sum to 1, and are calibrated where the endpoint calibrates;
    `option_logits` are raw. `client_seconds` is what the caller waited, retries included;
    `container_seconds` what the container needed, its queue included. `orders` has the scores in
    each option order where two were scored.
    """

    id: str
    kind: str
    family: str | None
    group: str | None
    option_ids: tuple[str, ...]
    expected: str
    probabilities: tuple[float, ...]
    option_logits: tuple[float, ...]
    allowed_token_mass: float
    input_tokens: int
    cached_tokens: int
    client_seconds: float
    container_seconds: float
    orders: tuple[OrderScores, ...]
    orders_agree: bool | None
    prompt_version: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An example that got no answer, and the error it got; `status` is HTTP's, where there is one.

    Only what is `retryable` is asked again when the run goes on: no answer came of it.
    """

    id: str
    kind: str
    family: str | None
    group: str | None
    expected: str
    client_seconds: float
    code: str
    message: str
    status: int | None
    retryable: bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run; rows and failures are in the order of the data, whenever they came."""

    folder: Path
    manifest: Manifest
    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]


def load_run(folder: Path) -> Run:
    """Return the finished run in `folder`.

    Raises:
        RunError: there is none, it is not finished, or a file in it is broken (with the line).
    """
    manifest = _read_manifest(folder)
    kept = _parse_answers(folder, _read_whole_lines(folder), manifest.settings.examples)
    missing = manifest.settings.examples - len(kept)
    if missing:
        raise RunError(
            f"the run in {folder} is not finished: {missing} of {manifest.settings.examples} "
            "examples are not answered; run the command that began it again",
            code="run_unfinished",
        )
    outcomes = [kept[index] for index in sorted(kept)]
    return Run(
        folder=folder,
        manifest=manifest,
        rows=tuple(outcome for outcome in outcomes if isinstance(outcome, Row)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )


class Record:
    """A run that is under way: keeps each answer the moment it comes. Threads may share it.

    `done` are the indexes of the examples that need not be asked any more, and `unanswered` those
    of the examples that were asked before and got no answer.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        answers: IO[bytes],
        *,
        done: frozenset[int],
        unanswered: frozenset[int],
    ) -> None:
        self.done, self.unanswered = done, unanswered
        self._folder, self._manifest, self._answers = folder, manifest, answers
        self._lock = threading.Lock()

    def keep_result(self, index: int, example: Example, result: Result, seconds: float) -> None:
        """Keep the answer to example number `index`, which took `seconds`.

        Raises:
            RunError: another model or another prompt answered than before; nothing is kept.
        """
        with self._open():
            self._check_served(Served.of(result))
            self._append(index, example, seconds, {"result": result.raw})

    def keep_error(
        self, index: int, example: Example, error: BallotError, seconds: float, *, retryable: bool
    ) -> None:
        """Keep the error that example number `index` got; if `retryable`, it is asked again."""
        fault = {
            "code": error.code,
            "message": error.message,
            "status": error.status,
            "retryable": retryable,
        }
        with self._open():
            self._append(index, example, seconds, {"error": fault})

    def close(self) -> None:
        """End the record, after the line that is being written; nothing is kept from then on."""
        with self._lock:
            self._answers.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._answers.closed:
                raise RunError(f"the run in {self._folder} is over", code="run_over")
            yield

    def _check_served(self, served: Served) -> None:
        known = self._manifest.served
        if known is None:
            self._manifest = replace(self._manifest, served=served)
            _write_manifest(self._folder, self._manifest)
        else:
            _check_same(
                "who answers has changed", self._folder, _identity(known), _identity(served)
            )

    def _append(
        self, index: int, example: Example, seconds: float, outcome: Mapping[str, Any]
    ) -> None:
        line = {
            "index": index,
            "id": example.id,
            "kind": example.kind,
            "family": example.family,
            "group": example.group,
            "expected": example.expected,
            "client_seconds": seconds,
            **outcome,
        }
        self._answers.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._answers.flush()


@contextmanager
def open_run(folder: Path, settings: Settings) -> Iterator[Record]:
    """Begin a run in `folder`, or go on with the one there.

    Raises:
        RunError: the folder holds something else, a run with other settings (all differences are
            named), or a broken one; or another process is at it.
        OSError: it cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        manifest = _begin_or_resume(folder, settings)
        lines = _read_whole_lines(folder)
        outcomes = _parse_answers(folder, lines, settings.examples)
        unanswered = frozenset(
            index
            for index, outcome in outcomes.items()
            if isinstance(outcome, Failure) and outcome.retryable
        )
        done = frozenset(outcomes) - unanswered
        with (folder / ANSWERS).open("ab") as answers:
            answers.truncate(len(lines))
            record = Record(folder, manifest, answers, done=done, unanswered=unanswered)
            try:
                yield record
            finally:
                record.close()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from the run; the system lets go when the process ends, however."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"another process is at the run in {folder}", code="run_in_use"
            ) from error
        yield
    finally:
        os.close(handle)


def _begin_or_resume(folder: Path, settings: Settings) -> Manifest:
    if (folder / MANIFEST).exists():
        manifest = _read_manifest(folder)
        _check_same(
            "the run there has other settings",
            folder,
            {"ballot": manifest.ballot_version, **_comparable(manifest.settings)},
            {"ballot": ballot.__version__, **_comparable(settings)},
        )
        return manifest
    if any(path.name != _UNFINISHED_MANIFEST for path in folder.iterdir()):
        raise RunError(
            f"{folder} holds something that is no run; name another folder", code="not_a_run"
        )
    manifest = Manifest(ballot_version=ballot.__version__, settings=settings, served=None)
    _write_manifest(folder, manifest)
    return manifest


def _comparable(settings: Settings) -> dict[str, Any]:
    """Return the settings that must stay: the data is its bytes, whatever the file is called."""
    return asdict(replace(settings, data_name=""))


def _identity(served: Served) -> dict[str, Any]:
    """Return what must stay of who answers: instances of one endpoint differ in their threads."""
    return asdict(replace(served, model=replace(served.model, threads=0)))


def _check_same(what: str, folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    differences = list(_differences(before, now, ""))
    if differences:
        raise RunError(
            f"{what}: {'; '.join(differences)}; name another folder than {folder}, or start anew "
            "by deleting it",
            code="run_differs",
        )


def _differences(before: dict[str, Any], now: dict[str, Any], path: str) -> Iterator[str]:
    for name, old in before.items():
        new = now[name]
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name} was {_shown(old)} and is {_shown(new)}"


def _shown(value: object) -> str:
    return "not given" if value is None else json.dumps(value, default=list)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest whole or not at all."""
    path = folder / _UNFINISHED_MANIFEST
    path.write_text(json.dumps(manifest.as_json(), indent=2) + "\n", encoding="utf-8")
    path.replace(folder / MANIFEST)


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        return Manifest.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError as error:
        raise RunError(f"there is no run in {folder}", code="no_run") from error
    except (InvalidAnswer, ValueError, RecursionError) as error:
        raise RunError(f"{path} is broken: {error}", code="broken_run") from error


def _settings(fields: Fields) -> Settings:
    scoring = fields.object("scoring")
    return Settings(
        data_name=fields.text("data_name"),
        data_sha256=fields.text("data_sha256"),
        mapping_sha256=fields.optional_text("mapping_sha256"),
        examples=fields.whole("examples"),
        target_kind=fields.text("target_kind"),
        target=fields.text("target"),
        scoring=Scoring(
            orders=None if scoring.values.get("orders") is None else scoring.whole("orders"),
            layout=scoring.optional_text("layout"),
        ),
        concurrency=fields.whole("concurrency"),
    )


def _served(manifest: Fields) -> Served:
    fields = manifest.object("served")
    return Served(
        model=ModelIdentity.of(fields.object("model")),
        prompt_version=fields.text("prompt_version"),
        layout=fields.optional_text("layout"),
        orders=fields.whole("orders"),
        calibration_sha256=fields.optional_text("calibration_sha256"),
        readout=fields.text("readout"),
    )


def _read_whole_lines(folder: Path) -> bytes:
    """Return the answers without a last line that is torn, as a killed process leaves it."""
    try:
        content = (folder / ANSWERS).read_bytes()
    except FileNotFoundError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def _parse_answers(folder: Path, lines: bytes, examples: int) -> dict[int, Row | Failure]:
    """Return the last outcome of each example, by its index."""
    outcomes: dict[int, Row | Failure] = {}
    for number, line in enumerate(lines.split(b"\n")[:-1], start=1):
        try:
            fields = Fields.of(json.loads(line), "the line")
            index = fields.whole("index")
            if not 0 <= index < examples:
                raise InvalidAnswer(f"there is no example {index}", code="invalid_answer")
            outcomes[index] = _outcome(fields)
        except (InvalidAnswer, ValueError, RecursionError) as error:
            raise RunError(
                f"{folder / ANSWERS}, line {number} is broken: {error}", code="broken_run"
            ) from error
    return outcomes


def _outcome(fields: Fields) -> Row | Failure:
    example = {
        "id": fields.text("id"),
        "kind": fields.text("kind"),
        "family": fields.optional_text("family"),
        "group": fields.optional_text("group"),
        "expected": fields.text("expected"),
        "client_seconds": fields.number("client_seconds"),
    }
    if "error" in fields.values:
        return _failure(example, fields.object("error"))
    return _row(example, Result.from_answer(fields.object("result")))


def _failure(example: dict[str, Any], error: Fields) -> Failure:
    return Failure(
        **example,
        code=error.text("code"),
        message=error.text("message"),
        status=None if error.values.get("status") is None else error.whole("status"),
        retryable=error.truth("retryable"),
    )


def _row(example: dict[str, Any], result: Result) -> Row:
    return Row(
        **example,
        option_ids=result.option_ids,
        probabilities=result.probabilities,
        option_logits=result.option_logits,
        allowed_token_mass=result.allowed_token_mass,
        input_tokens=result.input_tokens,
        cached_tokens=result.cached_tokens,
        container_seconds=result.timing.total_seconds,
        orders=result.orders,
        orders_agree=result.orders_agree,
        prompt_version=result.prompt_version,
    )
