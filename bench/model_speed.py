"""`make bench-model MODEL=...`: tokens/s by quantization, micro-batch, flash attention, threads.

Each table's variants take turns, round after round, on one random prompt. The re-quantized files
are for their speed alone: quantizing what was quantized before loses quality.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adapter.cpu import default_threads
from adapter.errors import StartupError
from adapter.llama import Library, Model
from bench import machine
from bench.bare import BATCH_TOKENS, RawContext
from bench.rows import BenchError
from bench.stats import Spread, spread
from tests.adapter_process import BUILD, DEMO_MODEL

# llama_ftype in llama.h.
QUANTIZATIONS = {"Q4_0": 2, "Q4_1": 3, "Q4_K_M": 15, "Q8_0": 7}
MICRO_BATCHES = (32, 64, 128, 256, 512, 1024)
SHORT_PROMPT, LONG_PROMPT = 128, 1_536


@dataclass(frozen=True)
class Variant:
    """One way to decode one prompt."""

    table: str
    name: str
    gguf: Path
    prompt_tokens: int
    threads: int
    batch_tokens: int = BATCH_TOKENS
    flash_attention: bool | None = None


@dataclass(frozen=True)
class Result:
    """A variant's tokens/s, and its share of the fastest of its table."""

    table: str
    name: str
    prompt_tokens: int
    tokens_per_second: Spread
    of_the_fastest: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write `model.json`; return 1 when the model cannot be measured."""
    parser = argparse.ArgumentParser(prog="bench-model")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--repeat", type=int, default=5, help="rounds; each decodes a prompt once")
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=BUILD / "bench")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    try:
        results = _bench(options.model, options.repeat, options.gpu_layers, console)
    except (BenchError, StartupError) as error:
        print(f"bench-model: {error}", file=sys.stderr)
        return 1
    report = {
        "model": options.model.name,
        "machine": machine.describe_machine(),
        "load_after": machine.load(),
        "results": [dataclasses.asdict(result) for result in results],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "model.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _bench(gguf: Path, rounds: int, gpu_layers: int, console: Console) -> list[Result]:
    if not gguf.is_file():
        raise BenchError(f"there is no model file {gguf}")
    library = Library(None)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        with console.status("quantizing"):
            files = _quantized(library, gguf.resolve(), Path(folder))
        for variants in _tables(gguf.resolve(), files):
            with console.status(variants[0].table):
                found = _take_turns(library, variants, rounds, gpu_layers)
            results += found
            console.print(_printed(found))
    return results


def _quantized(library: Library, gguf: Path, folder: Path) -> dict[str, Path]:
    """Return the model's file in each quantization: the file itself as it is, the others made."""
    files = {"as it is": gguf}
    for name, ftype in QUANTIZATIONS.items():
        target = folder / f"{gguf.stem}.{name}.gguf"
        if quantize(library.api, gguf, target, ftype):
            files[name] = target
    return files


def quantize(api: Any, source: Path, target: Path, ftype: int) -> bool:
    """Write `source` in another quantization; False where llama.cpp refuses."""
    params = api.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = default_threads()
    params.allow_requantize = True
    status: int = api.llama_model_quantize(
        os.fsencode(source), os.fsencode(target), ctypes.byref(params)
    )
    return status == 0


def _tables(gguf: Path, files: dict[str, Path]) -> list[list[Variant]]:
    threads = default_threads()
    return [
        [
            Variant("quantization", name, file, SHORT_PROMPT, threads)
            for name, file in files.items()
        ],
        [
            Variant("micro-batch", str(size), gguf, LONG_PROMPT, threads, batch_tokens=size)
            for size in MICRO_BATCHES
        ],
        [
            Variant("flash attention", word, gguf, LONG_PROMPT, threads, flash_attention=on)
            for word, on in (("on", True), ("off", False))
        ],
        [
            Variant("threads", str(number), gguf, SHORT_PROMPT, number)
            for number in thread_counts(threads)
        ],
    ]


def thread_counts(most: int) -> list[int]:
    """Return the powers of two below `most`, and `most`."""
    counts = []
    count = 1
    while count < most:
        counts.append(count)
        count *= 2
    return [*counts, most]


def _take_turns(
    library: Library, variants: Sequence[Variant], rounds: int, gpu_layers: int
) -> list[Result]:
    samples: list[list[float]] = [[] for _ in variants]
    for round_ in range(rounds):
        turns = list(zip(variants, samples, strict=True))
        for variant, seconds in turns if round_ % 2 == 0 else reversed(turns):
            seconds.append(_tokens_per_second(library, variant, gpu_layers))
    return rank(variants, samples)


def rank(variants: Sequence[Variant], samples: Sequence[Sequence[float]]) -> list[Result]:
    """Return each variant's spread, and its share of the fastest one's median."""
    spreads = [spread(values) for values in samples]
    fastest = max(one.median for one in spreads)
    return [
        Result(variant.table, variant.name, variant.prompt_tokens, one, one.median / fastest)
        for variant, one in zip(variants, spreads, strict=True)
    ]


def _tokens_per_second(library: Library, variant: Variant, gpu_layers: int) -> float:
    """Load the variant, warm it up, and time one decode of its prompt."""
    with closing(Model(library, variant.gguf, gpu_layers=gpu_layers)) as model:
        source = random.Random(variant.prompt_tokens)
        size = model.vocabulary.size
        prompt = [source.randrange(size) for _ in range(variant.prompt_tokens)]
        context = RawContext(
            library.api,
            model.handle,
            tokens=variant.prompt_tokens,
            threads=variant.threads,
            batch_tokens=variant.batch_tokens,
            flash_attention=variant.flash_attention,
        )
        with closing(context):
            context.decode(prompt[:SHORT_PROMPT])
            context.clear()
            start = time.perf_counter()
            context.decode(prompt)
            return len(prompt) / (time.perf_counter() - start)


def _printed(results: Sequence[Result]) -> Table:
    first = results[0]
    table = Table(title=f"{first.table}, {first.prompt_tokens} tokens", title_justify="left")
    for heading in (first.table, "tokens/s", "quartiles", "of the fastest"):
        table.add_column(heading, justify="right")
    for result in results:
        speed = result.tokens_per_second
        table.add_row(
            result.name,
            f"{speed.median:.0f}",
            f"{speed.low:.0f} to {speed.high:.0f}",
            f"{result.of_the_fastest:.2f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
