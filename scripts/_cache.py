"""The cache that checkouts share: pinned files, native wheels and models, each complete or absent.

Layout under `$BALLOT_CACHE` (else `$XDG_CACHE_HOME/ballot`, else `~/.cache/ballot`):

    downloads/        pinned files of the package index
    wheels/<key>/     one built wheel each; the key names all that its machine code depends on
    backend/          the pinned build backend
    llama.cpp/        vocabularies and chat templates out of the llama-cpp-python source
    models/           GGUF files
    bindings/         older bindings, installed
    logs/             output of the last run of each command
    staging/          work in progress; emptied by whoever takes the lock
    lock              held (flock) by the setup that is running

Nothing is written in place: a file is made under `staging/` and renamed once it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts._console import SetupError
from scripts._pins import Pin

_CPU_FIELDS = ("flags", "Features", "isa")


class ChecksumError(SetupError):
    """A file is not the pinned one."""


@dataclass(frozen=True)
class Cache:
    """The cache folder; see the module's docstring for what lies where."""

    root: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Cache:
        """Return the cache that the environment names; empty variables count as unset."""
        if chosen := environ.get("BALLOT_CACHE"):
            return cls(Path(chosen).expanduser().resolve())
        base = environ.get("XDG_CACHE_HOME")
        return cls((Path(base) if base else Path.home() / ".cache").resolve() / "ballot")

    def folder(self, name: str) -> Path:
        """Return one of the cache's folders, made if need be."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def locked(self, *, on_wait: Callable[[], None]) -> Iterator[None]:
        """Hold the cache alone; `on_wait` is called once if another process holds it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
            # The lock is ours, so whatever lies here was left by a run that was killed.
            shutil.rmtree(self.root / "staging", ignore_errors=True)
            yield

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a new empty folder on the cache's file system, removed afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder("staging")) as folder:
            yield Path(folder)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path, *, sha256: str) -> None:
    """Check a file against its pinned SHA-256.

    Raises:
        ChecksumError: it differs; the file has been removed, so that a retry starts afresh.
    """
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise ChecksumError(
            f"{path.name}: SHA-256 is {found}, expected {sha256}; the file was discarded"
        )


def is_intact(path: Path, *, sha256: str) -> bool:
    """Tell whether the pinned file is there; a damaged one is removed."""
    if not path.is_file():
        return False
    try:
        verify(path, sha256=sha256)
    except ChecksumError:
        return False
    return True


def fetch(pin: Pin, *, cache: Cache, download: Callable[[Pin, Path], None]) -> Path:
    """Return the pinned file's path in the cache, downloading it when absent or damaged.

    `download(pin, folder)` must leave the file in the folder under `pin.filename`.

    Raises:
        ChecksumError: what was downloaded is not the pinned file.
    """
    target = cache.folder("downloads") / pin.filename
    if not is_intact(target, sha256=pin.sha256):
        with cache.staging() as folder:
            download(pin, folder)
            verify(folder / pin.filename, sha256=pin.sha256)
            (folder / pin.filename).replace(target)
    return target


def cpu_features(cpuinfo: str) -> str:
    """Return the instruction set extensions listed in the text of /proc/cpuinfo, sorted.

    Cores may differ (big and little), so the union over all of them is taken.
    """
    features: set[str] = set()
    for line in cpuinfo.splitlines():
        field, _, value = line.partition(":")
        if field.strip() in _CPU_FIELDS:
            features.update(value.split())
    return " ".join(sorted(features))


def wheel_key(
    *, version: str, python_tag: str, platform: str, cpu: str, cmake_args: tuple[str, ...]
) -> str:
    """Return the name of the folder for a wheel built by this Python, on this CPU, this way.

    `-march=native` code stops with an illegal instruction on a CPU that lacks an extension, so
    the CPU takes part even though Python's own wheel tags ignore it.
    """
    recipe = "\n".join((cpu, *cmake_args))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return f"llama-cpp-python-{version}-{python_tag}-{platform}-{digest}"
