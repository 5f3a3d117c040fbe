"""Score the two example requests with a real model on this machine, and print the answers.

Starts the adapter on a free loopback port, sends `examples/*.json`, prints each decision as a
table with bars, and stops the adapter. `MODEL=path/to.gguf` chooses another model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / ".build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
EXAMPLES = ("support-route.json", "shared-state.json")
BAR_CELLS = 24
LOW_MASS = 0.5


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def main() -> int:
    """Run the demo and return the exit status."""
    console = Console(highlight=False)
    start = time.perf_counter()
    try:
        model = chosen_model(os.environ.get("MODEL"))
        with console.status("loading the model"), running_adapter(model) as url:
            console.print(f"The adapter answers on {url} with [bold]{model.name}[/bold].")
            for name in EXAMPLES:
                show_example(console, url, name)
    except DemoError as error:
        Console(stderr=True, highlight=False).print(f"demo: {error}", markup=False)
        return 1
    if model == DEMO_MODEL:
        console.print(toy_notice(), style="yellow")
    console.print(f"The adapter has stopped. {time.perf_counter() - start:.1f} seconds in all.")
    return 0


def chosen_model(path: str | None) -> Path:
    """Return the GGUF to load: `path`, or the demo's own.

    Raises:
        DemoError: there is no such file.
    """
    model = Path(path).expanduser().resolve() if path else DEMO_MODEL
    if not model.is_file():
        raise DemoError(f"there is no model file {model}")
    return model


@contextmanager
def running_adapter(model: Path) -> Iterator[str]:
    """Run the adapter on a free loopback port and yield its URL once it is ready.

    Raises:
        DemoError: it did not start; with its own words.
    """
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("BALLOT_")
    }
    variables |= {
        "BALLOT_GGUF_PATH": str(model),
        "BALLOT_HOST": "127.0.0.1",
        "BALLOT_PORT": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter"],
        cwd=ROOT / "container",
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = wait_for(process, "listening")["port"]
        wait_for(process, "model_loaded")
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url)
        yield url
    finally:
        process.terminate()
        process.communicate()


def wait_for(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """Return the adapter's log record of `event`.

    Raises:
        DemoError: the adapter failed first.
    """
    assert process.stdout is not None
    for line in process.stdout:
        record: dict[str, Any] = json.loads(line)
        if record["event"] == event:
            return record
        if record["event"] == "startup_failed":
            raise DemoError(record["message"])
    raise DemoError("the adapter ended before it was ready")


def wait_until_healthy(url: str) -> None:
    """Return when `/ping` answers 200."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/ping"):
                return
        except urllib.error.HTTPError:
            time.sleep(0.01)


def show_example(console: Console, url: str, name: str) -> None:
    """Send one example and print what it asks and what it is answered."""
    body = (ROOT / "examples" / name).read_bytes()
    request = json.loads(body)
    answer = post(f"{url}/invocations", body)
    decisions = request.get("decisions") or [request["decision"]]
    results = answer.get("results") or [answer["result"]]
    console.print()
    console.rule(f"examples/{name}", align="left")
    for decision, result in zip(decisions, results, strict=True):
        console.print(decision_table(decision, result))
        console.print(footnote(result), style="dim")


def post(url: str, body: bytes) -> dict[str, Any]:
    """Return the JSON answer to a JSON request.

    Raises:
        DemoError: the adapter refused it; with its own words.
    """
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise DemoError(f"the adapter answered {error.code}: {error.read().decode()}") from error


def decision_table(decision: dict[str, Any], result: dict[str, Any]) -> Table:
    """Return the options of a decision with their probabilities as bars."""
    table = Table(
        title=f"{decision['id']}: {decision['question']}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    table.add_column("option")
    table.add_column("probability", justify="right")
    table.add_column("")
    table.add_column("description")
    best = max(result["probabilities"])
    for option, probability in zip(decision["options"], result["probabilities"], strict=True):
        table.add_row(
            option["id"],
            f"{probability:.3f}",
            bar(probability),
            option["description"],
            style="bold green" if probability == best else None,
        )
    return table


def bar(probability: float) -> Text:
    """Return a bar of `BAR_CELLS` cells, filled to `probability`."""
    filled = round(probability * BAR_CELLS)
    return Text("█" * filled + "░" * (BAR_CELLS - filled))


def footnote(result: dict[str, Any]) -> str:
    """Return what the answer cost and how much of the model's attention the options had."""
    cost = (
        f"{result['input_tokens']} tokens, {result['cached_tokens']} of them found in memory, "
        f"{result['timing']['forward_seconds'] * 1000:.0f} ms, "
        f"allowed token mass {result['allowed_token_mass']:.3f}"
    )
    if result["allowed_token_mass"] < LOW_MASS:
        cost += " (low: the model was about to write something else)"
    return cost + "\n"


def toy_notice() -> str:
    """Return the warning that belongs to the demo's model."""
    return (
        "\nSmolLM2-135M is a toy: it shows that everything works, and it decides about as well as "
        "chance.\nTry a model that can decide: MODEL=path/to.gguf make demo"
    )


if __name__ == "__main__":
    sys.exit(main())
