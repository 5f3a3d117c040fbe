"""What a run ran on: machine, versions, commit, model."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Those that decide which kernels llama.cpp has for a CPU.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "i8mm", "sve")


def describe_machine() -> dict[str, Any]:
    """Return the machine and the versions, as the report shows them."""
    cpuinfo = _read("/proc/cpuinfo")
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    return {
        "cpu": _first(r"model name\s*: (.+)", cpuinfo) or platform.machine(),
        "cpu_features": features(_first(r"(?:flags|Features)\s*: (.+)", cpuinfo)),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "llama_cpp_python": version("llama_cpp_python"),
        "commit": commit(),
    }


def features(flags: str) -> list[str]:
    """Return those of a CPU's flags that matter to its kernels."""
    return [name for name in _FEATURES if name in flags.split()]


def load() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def is_busy(load_averages: list[float], cpus: int) -> bool:
    """Tell whether others keep the machine so busy that no ratio is worth much.

    Threads that decode wait for each other at every layer, so that one that has to share its core
    slows all of them, many times over.
    """
    return load_averages[0] > cpus / 4


def commit() -> str:
    """Return the checkout's commit, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1].strip() if match else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
