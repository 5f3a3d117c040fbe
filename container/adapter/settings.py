"""The adapter's configuration: `BALLOT_*` environment variables, read once into `Settings`."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.decision import LAYOUTS, ORDERS
from adapter.errors import StartupError

PREFIX = "BALLOT_"
# Each is a sequence of llama.cpp's, which has room for 256.
MAX_LANES = 64
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Variable:
    """How one environment variable is read: its parser, and the words for the documentation."""

    parse: Callable[[str], Any]
    allowed: str
    meaning: str


def _integer(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not lowest <= value <= highest:
            raise ValueError(text)
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 < value <= 3600):
        raise ValueError(text)
    return value


def _threads(text: str) -> int | None:
    return None if text == "auto" else _integer(1, 1024)(text)


def _path(text: str) -> Path:
    if not text:
        raise ValueError(text)
    return Path(text)


def _file_or_json(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _host(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError(text)
    return text


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(text)
    return text.lower()


def _layout(text: str) -> str:
    if text not in LAYOUTS:
        raise ValueError(text)
    return text


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


def _variable(parse: Callable[[str], Any], allowed: str, meaning: str) -> dict[str, Variable]:
    return {"variable": Variable(parse, allowed, meaning)}


@dataclass(frozen=True)
class Settings:
    """Every setting of the adapter; the variable of `max_queue` is `BALLOT_MAX_QUEUE`."""

    model_dir: Path = field(
        default=Path("/opt/ml/model"),
        metadata=_variable(
            _path,
            "a folder",
            "Where the model artifact lies: exactly one GGUF in it or one level down.",
        ),
    )
    gguf_path: Path | None = field(
        default=None,
        metadata=_variable(
            _path, "a file", "The GGUF to load, instead of the one found under the model folder."
        ),
    )
    chat_template: Path | None = field(
        default=None,
        metadata=_variable(
            _path, "a file", "A Jinja chat template to use instead of the GGUF's own."
        ),
    )
    calibration: str | None = field(
        default=None,
        metadata=_variable(
            _file_or_json,
            "a file, or its JSON",
            "The calibration of this model, as `ballot calibrate` writes it: see docs/quality.md.",
        ),
    )
    llama_lib_dir: Path | None = field(
        default=None,
        metadata=_variable(
            _path,
            "a folder",
            "llama.cpp libraries to use instead of those of llama-cpp-python, backends included.",
        ),
    )
    host: str = field(
        default="0.0.0.0", metadata=_variable(_host, "an address", "The address to listen on.")
    )
    port: int = field(
        default=8080,
        metadata=_variable(
            _integer(0, 65535), "0 to 65535", "The port to listen on; 0 takes a free one."
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_variable(
            _threads,
            "auto, or 1 to 1024",
            "Threads that decode; auto: the physical cores within the affinity and the CPU quota.",
        ),
    )
    gpu_layers: int = field(
        default=0,
        metadata=_variable(
            _integer(-1, 100_000),
            "-1 to 100000",
            "Layers to offload to a GPU; -1 offloads all of them.",
        ),
    )
    context_tokens: int = field(
        default=4096,
        metadata=_variable(
            _integer(256, 1_048_576), "256 to 1048576", "The longest prompt, in tokens."
        ),
    )
    lanes: int = field(
        default=1,
        metadata=_variable(
            _integer(1, MAX_LANES),
            f"1 to {MAX_LANES}",
            "Prompts merged into one decode; more than 1 lets an answer depend on its neighbours: "
            "see docs/performance.md.",
        ),
    )
    max_queue: int = field(
        default=32,
        metadata=_variable(
            _integer(0, 100_000),
            "0 to 100000",
            "Requests that may wait behind the one being scored; 0 refuses whenever one is.",
        ),
    )
    max_body_bytes: int = field(
        default=1_048_576,
        metadata=_variable(
            _integer(1024, 1_073_741_824),
            "1024 to 1073741824",
            "The largest request body, before and after decompression.",
        ),
    )
    max_decisions: int = field(
        default=64,
        metadata=_variable(_integer(1, 10_000), "1 to 10000", "The most decisions in one request."),
    )
    request_timeout_seconds: float = field(
        default=55.0,
        metadata=_variable(
            _seconds,
            "more than 0, to 3600",
            "A request that cannot be scored within this time is refused or given up.",
        ),
    )
    body_timeout_seconds: float = field(
        default=10.0,
        metadata=_variable(
            _seconds,
            "more than 0, to 3600",
            "How long a request's headers, then its body, may take to arrive, and how long none of "
            "its answer may be taken.",
        ),
    )
    drain_timeout_seconds: float = field(
        default=25.0,
        metadata=_variable(
            _seconds,
            "more than 0, to 3600",
            "How long accepted requests may take to finish after SIGTERM.",
        ),
    )
    state_cache_mb: int = field(
        default=512,
        metadata=_variable(
            _integer(0, 1_048_576),
            "0 to 1048576",
            "Memory, in MiB, that states prefilled for earlier requests may take; 0 keeps none.",
        ),
    )
    state_cache_entries: int = field(
        default=4096,
        metadata=_variable(
            _integer(0, 1_000_000),
            "0 to 1000000",
            "The most states that are kept for later requests, whatever their size.",
        ),
    )
    layout: str = field(
        default=LAYOUTS[0],
        metadata=_variable(
            _layout,
            ", ".join(LAYOUTS),
            "The prompt layout of requests that name none: see docs/prompt.md.",
        ),
    )
    orders: int = field(
        default=ORDERS[0],
        metadata=_variable(
            _integer(ORDERS[0], ORDERS[-1]),
            "1 or 2",
            "Option orders scored where a request does not say; 2 adds the reversed one.",
        ),
    )
    model_aliases: bool = field(
        default=True,
        metadata=_variable(
            _switch,
            "on, off",
            "Whether System One requests may name the model as the hosted service does: jev-latest "
            "and every other jev-*.",
        ),
    )
    log_level: str = field(
        default="info",
        metadata=_variable(
            _log_level, ", ".join(LOG_LEVELS), "The least severe level that is logged."
        ),
    )


def variables() -> dict[str, tuple[str, Variable, Any]]:
    """Return each environment variable's field name, reading rule and default, in order."""
    return {
        PREFIX + item.name.upper(): (item.name, item.metadata["variable"], item.default)
        for item in dataclasses.fields(Settings)
    }


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the `BALLOT_*` variables of `environment`.

    Raises:
        StartupError: one message that names every bad value and every unknown variable.
    """
    known = variables()
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name in sorted(key for key in environment if key.startswith(PREFIX)):
        if name not in known:
            problems.append(_unknown(name, list(known)))
            continue
        field_name, variable, _ = known[name]
        try:
            values[field_name] = variable.parse(environment[name].strip())
        except ValueError:
            problems.append(f"{name}={environment[name]!r} is not {variable.allowed}")
    if problems:
        raise StartupError("bad configuration: " + "; ".join(problems))
    return Settings(**values)


def _unknown(name: str, known: list[str]) -> str:
    # Without the prefix, which all of them share, only what differs counts.
    suffixes = [other.removeprefix(PREFIX) for other in known]
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), suffixes, n=1)
    hint = f" (did you mean {PREFIX}{nearest[0]}?)" if nearest else ""
    return f"{name} is not a variable of the adapter{hint}"
