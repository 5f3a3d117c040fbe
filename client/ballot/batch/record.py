"""The output file and the one beside it, which say at any moment how far the work has come.

The output has the answers to the first lines of the input, in order, and is only ever added to, or
replaced as a whole where lines are asked again. What a killed process leaves of a line is cut off
when the work goes on. The file beside it, under the output's name and `.batch.json`, says which
input these are the answers to, and of which model.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from ballot.batch.answers import Answer, Tally, read_answer
from ballot.batch.errors import BatchError, BatchFailed
from ballot.batch.lines import Line, Source
from ballot.errors import InvalidAnswer
from ballot.wire import Fields

BINDING_SUFFIX = ".batch.json"
_RENEWAL_SUFFIX = ".again"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Binding:
    """What an output is bound to; `model_sha256` is None until an answer has named a model."""

    input_name: str
    input_sha256: str
    input_lines: int
    model_sha256: str | None = None


class Output:
    """An output that is being written. `before` is what it already had when it was opened."""

    def __init__(self, path: Path, file: IO[bytes], binding: Binding, before: Tally) -> None:
        self.before, self.tally = before, Tally()
        self._path, self._file, self._binding = path, file, binding

    @property
    def lines(self) -> int:
        """How many lines of the input are answered."""
        return self.before.lines + self.tally.lines

    def keep(self, answers: Sequence[Answer]) -> None:
        """Add the answers to the next lines; once this returns they are on the disk.

        Raises:
            BatchFailed: another model answered than before; nothing is kept.
            OSError: they cannot be written.
        """
        self.check_model(answers)
        self._file.write(b"".join(answer.line + b"\n" for answer in answers))
        self.tally.add(answers)  # an interruption from here on loses none of them
        self._file.flush()
        os.fsync(self._file.fileno())

    @contextmanager
    def renew(self) -> Iterator[Renewal]:
        """Give what replaces errors by other answers; however that ends, those it got are kept.

        The output is replaced as a whole, so that a kill leaves it as it was.

        Raises:
            OSError: it cannot be written once more; it stays as it was.
        """
        path = self._path.with_name(self._path.name + _RENEWAL_SUFFIX)
        try:
            with path.open("wb+") as file:
                renewal = Renewal(self, self._path, file)
                try:
                    yield renewal
                finally:
                    renewal.finish()
                    path.replace(self._path)
        finally:
            path.unlink(missing_ok=True)

    def check_model(self, answers: Iterable[Answer]) -> None:
        """Refuse answers of another model than before, and take note of the first model.

        Raises:
            BatchFailed: there are some.
        """
        known = self._binding.model_sha256
        for answer in answers:
            found = answer.model_sha256
            if found is None or found == known:
                continue
            if known is not None:
                raise BatchFailed(
                    f"another model answers than before: its SHA-256 was {known} and is {found}; "
                    "name another output, or have the first model answer again",
                    code="model_changed",
                )
            known = found
        if known != self._binding.model_sha256:
            self._binding = replace(self._binding, model_sha256=known)
            write_binding(self._path, self._binding)


class Renewal:
    """An output that is written once more, with other answers in place of retryable errors."""

    def __init__(self, output: Output, path: Path, file: IO[bytes]) -> None:
        self._output, self._path, self._file = output, path, file
        self._old = _read_whole(path)

    def lines(self, source: Source) -> Iterator[Line]:
        """Yield the lines of the input whose answers are retryable errors."""
        for line, (_, old) in zip(source.read(), _read_whole(self._path), strict=False):
            if old.retryable:
                yield line

    def keep(self, answers: Sequence[Answer]) -> None:
        """Put answers in the place of the next errors.

        Raises:
            BatchFailed: another model answered than before; none of them is kept.
            OSError: they cannot be written.
        """
        self._output.check_model(answers)
        for answer in answers:
            for content, old in self._old:
                if old.retryable:
                    break
                self._file.write(content)
            self._file.write(answer.line + b"\n")

    def finish(self) -> None:
        """Have the rest as it was, whatever of the file an interruption has left unwritten."""
        self._file.flush()
        self._file.seek(0)
        count, end = 0, 0
        for line in self._file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        self._file.seek(end)
        self._file.truncate()
        with self._path.open("rb") as old:
            self._file.writelines(itertools.islice(old, count, None))
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_output(path: Path, source: Source) -> Iterator[Output]:
    """Begin an output, or go on with the one there.

    Raises:
        BatchError: the file there is not of this input, or is no output at all; or another process
            is at it.
        OSError: it cannot be read or written.
    """
    binding = Binding(
        input_name=source.path.name, input_sha256=source.sha256, input_lines=source.lines
    )
    if path.exists() and not path.is_file():
        raise BatchError(f"{path} is no regular file; name another output", code="not_an_output")
    with path.open("ab+") as file:
        _lock(file, path)
        if os.fstat(file.fileno()).st_size:
            binding = _check_bound(path, binding)
        else:
            write_binding(path, binding)  # an empty file has nothing to lose
        before = _count_whole_lines(path, file, binding)
        if not before.lines:
            binding = replace(binding, model_sha256=None)
        yield Output(path, file, binding, before)


def binding_path(path: Path) -> Path:
    """Return where the file beside an output lies."""
    return path.with_name(path.name + BINDING_SUFFIX)


def _lock(file: IO[bytes], path: Path) -> None:
    """Keep other processes from the output; the system lets go when this one ends, however."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(path) from error
    if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise _in_use(path)  # it was replaced since it was opened


def _in_use(path: Path) -> BatchError:
    return BatchError(f"another process is writing {path}", code="output_in_use")


def _read_whole(path: Path) -> Iterator[tuple[bytes, Answer]]:
    """Yield the lines of an output that has whole ones only, as they are and as they are read."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield line, read_answer(line[:-1], place=number, number=number)


def _check_bound(path: Path, binding: Binding) -> Binding:
    """Return what the output is bound to, which must be this input."""
    bound = _read_binding(path)
    if bound.input_sha256 != binding.input_sha256:
        raise BatchError(
            f"{path} has answers to another input: {bound.input_name}, SHA-256 "
            f"{bound.input_sha256}, and {binding.input_name} has {binding.input_sha256}; name "
            "another output, or delete it to start anew",
            code="input_changed",
        )
    return replace(bound, input_name=binding.input_name)


def _count_whole_lines(path: Path, file: IO[bytes], binding: Binding) -> Tally:
    """Count what the output has, and cut off a last line that is torn."""
    tally, end = Tally(), 0
    file.seek(0)
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            break
        try:
            tally.add([read_answer(line[:-1], place=number, number=number)])
        except InvalidAnswer as error:
            raise BatchError(f"{path} is broken: {error.message}", code="broken_output") from error
        end += len(line)
    if tally.lines > binding.input_lines:
        raise BatchError(
            f"{path} is broken: {tally.lines} answers to {binding.input_lines} lines",
            code="broken_output",
        )
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return tally


def write_binding(path: Path, binding: Binding) -> None:
    """Write the file beside an output, whole or not at all."""
    target = binding_path(path)
    unfinished = target.with_name(target.name + ".tmp")
    said = {"format": _FORMAT, **asdict(binding)}
    unfinished.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(target)


def _read_binding(path: Path) -> Binding:
    source = binding_path(path)
    try:
        fields = Fields.of(json.loads(source.read_bytes()), "it")
        if fields.whole("format") != _FORMAT:
            raise InvalidAnswer(f"it.format is not {_FORMAT}", code="invalid_answer")
        return Binding(
            input_name=fields.text("input_name"),
            input_sha256=fields.text("input_sha256"),
            input_lines=fields.whole("input_lines"),
            model_sha256=fields.optional_text("model_sha256"),
        )
    except FileNotFoundError as error:
        raise BatchError(
            f"{path} is there already, and is no output of `ballot batch run`; name another",
            code="not_an_output",
        ) from error
    except (InvalidAnswer, ValueError) as error:
        raise BatchError(f"{source} is broken: {error}", code="broken_output") from error
