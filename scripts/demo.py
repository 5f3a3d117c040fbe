"""Deploy everything to an AWS emulated on this machine, use it, destroy it, and find it gone.

The CDK CLI really deploys, CodeBuild's commands really run, and the endpoints' containers really
answer, as processes of this machine; `docs/emulator.md` says what is emulated and how faithfully.
`MODEL=path/to.gguf` deploys another model than the catalog's.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# ruff: noqa: E402 - the imports need the path above them
from emulator import Emulator
from emulator.cdk import CdkApp, CdkError
from emulator.clients import make_client
from emulator.running import EmulatorError

ENVIRONMENT = "local"
DECISION_ENDPOINT = f"ballot-{ENVIRONMENT}-decision"
CHAT_ENDPOINT = f"ballot-{ENVIRONMENT}-chat"
EXAMPLES = ("support-route.json", "shared-state.json")
CHAT_QUESTION = "Name three primary colours."
MODEL_BUCKET = "a-model-of-your-own"
BAR_CELLS = 24
LOW_MASS = 0.5


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Steps:
    """Prints a line for each step, with the seconds that it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.perf_counter()

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """Show `title` while the block runs, and what it reports beside it."""
        start = time.perf_counter()
        if not self._console.is_terminal:
            self._console.print(f"  ...  {title}")
        with self._console.status(title) as status:
            yield lambda detail: status.update(f"{title}  [dim]{detail}[/dim]")
        seconds = time.perf_counter() - start
        self._console.print(f"[green]done[/green]  {title} [dim]({seconds:.0f} s)[/dim]")

    @property
    def total_seconds(self) -> float:
        """Seconds since the first step."""
        return time.perf_counter() - self._start


def main() -> int:
    """Run the demo and return the exit status."""
    console = Console(highlight=False)
    try:
        run(console, chosen_model(os.environ.get("MODEL")))
    except (DemoError, EmulatorError, CdkError) as error:
        Console(stderr=True, highlight=False).print(f"demo: {error}", markup=False)
        return 1
    return 0


def chosen_model(path: str | None) -> Path | None:
    """Return the GGUF at `path`, or None for the catalog's own model.

    Raises:
        DemoError: there is no such GGUF.
    """
    if not path:
        return None
    model = Path(path).expanduser().resolve()
    if not model.is_file():
        raise DemoError(f"there is no model file {model}")
    with model.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise DemoError(f"{model} is not a GGUF file")
    return model


def run(console: Console, model: Path | None) -> None:
    """Tell the whole story.

    Raises:
        DemoError: something answered wrongly, or was left behind.
        CdkError: a deployment failed.
    """
    steps = Steps(console)
    console.print(introduction())
    with tempfile.TemporaryDirectory(prefix="ballot-demo-") as folder:
        with steps.step("start the emulator"):
            emulator = Emulator().__enter__()
        with emulator:
            app = CdkApp(emulator, Path(folder), environment=ENVIRONMENT)
            with steps.step("cdk bootstrap"):
                app.bootstrap()
            if model:
                with steps.step(f"upload {model.name}"):
                    deploy_own_model(emulator, app, model)
            deploy(steps, app)
            console.print()
            use(console, emulator)
            with steps.step(f"cdk destroy -c environment={ENVIRONMENT} --all") as report:
                app.destroy(on_line=lambda line: report(stack_event(line)))
            if model:
                remove_own_model(emulator, model)
            with steps.step("look for anything left behind"):
                check_empty(emulator)
    console.print("The account is empty: no bucket, role, log, image, model, endpoint, process.")
    if model is None:
        console.print(toy_notice(), style="yellow")
    console.print(f"{steps.total_seconds:.0f} seconds in all.")


def introduction() -> str:
    """Return what the reader is about to see, and what of it is not AWS."""
    return (
        "This deploys Ballot's real CDK app to an AWS account emulated on this machine.\n"
        "Emulated: the AWS services, and Docker. Real: the CDK CLI, the templates, the\n"
        "builds' commands, the model's download and check, both containers' servers.\n"
    )


def deploy(steps: Steps, app: CdkApp) -> None:
    """Deploy all stacks, showing what CloudFormation does."""
    with steps.step(f"cdk deploy -c environment={ENVIRONMENT} --all") as report:
        app.deploy(on_line=lambda line: report(stack_event(line)))


def stack_event(line: str) -> str:
    """Return the short of one line of the CDK CLI's progress."""
    parts = [part.strip() for part in line.split("|")]
    if len(parts) < 6:
        return line.strip()[:60]
    stack, _, _, status, kind, *_ = parts
    return f"{stack}: {kind.rsplit('::', 1)[-1]} {status.lower().replace('_', ' ')}"


def use(console: Console, emulator: Emulator) -> None:
    """Ask the two endpoints, through boto3 as any application would."""
    runtime = make_client(emulator.exports, "sagemaker-runtime", config=Config(read_timeout=70))
    for name in EXAMPLES:
        request = json.loads((ROOT / "examples" / name).read_text())
        answer = invoke(runtime, DECISION_ENDPOINT, request)
        show_decisions(console, name, request, answer)
    console.rule("chat", align="left")
    message = {"role": "user", "content": CHAT_QUESTION}
    answer = invoke(runtime, CHAT_ENDPOINT, {"messages": [message], "max_tokens": 24})
    console.print(f"[bold]{CHAT_QUESTION}[/bold]")
    said = answer["choices"][0]["message"]["content"].strip()
    console.print(said or "(this model had nothing to say)", markup=False)
    console.print()


def invoke(runtime: Any, endpoint: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return an endpoint's JSON answer.

    Raises:
        DemoError: the endpoint refused the request; with its own words.
    """
    try:
        response = runtime.invoke_endpoint(
            EndpointName=endpoint, ContentType="application/json", Body=json.dumps(request)
        )
    except ClientError as error:
        raise DemoError(f"{endpoint} refused the request: {error}") from error
    answer: dict[str, Any] = json.loads(response["Body"].read())
    return answer


def deploy_own_model(emulator: Emulator, app: CdkApp, model: Path) -> None:
    """Put `model` into a bucket of its own, and have both endpoints use it."""
    s3 = make_client(emulator.exports, "s3")
    s3.create_bucket(Bucket=MODEL_BUCKET)
    s3.upload_file(str(model), MODEL_BUCKET, model.name)
    with model.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    source = {"kind": "s3", "uri": f"s3://{MODEL_BUCKET}/{model.name}"}

    def change(settings: dict[str, Any]) -> None:
        settings["models"] = {"chosen": {"source": source, "sha256": sha256}}
        for endpoint in settings["endpoints"].values():
            endpoint["model"] = "chosen"

    app.change_settings(change)


def remove_own_model(emulator: Emulator, model: Path) -> None:
    """Remove what `deploy_own_model` put there."""
    s3 = make_client(emulator.exports, "s3")
    s3.delete_object(Bucket=MODEL_BUCKET, Key=model.name)
    s3.delete_bucket(Bucket=MODEL_BUCKET)


def check_empty(emulator: Emulator) -> None:
    """Check that the account holds nothing any more.

    Raises:
        DemoError: naming what it holds.
    """
    left = {kind: names for kind, names in emulator.leftovers().items() if names}
    if left:
        raise DemoError(f"something was left behind: {left}")


def show_decisions(
    console: Console, name: str, request: dict[str, Any], answer: dict[str, Any]
) -> None:
    """Print what an example asks and what it is answered."""
    decisions = request.get("decisions") or [request["decision"]]
    results = answer.get("results") or [answer["result"]]
    console.rule(f"examples/{name}", align="left")
    for decision, result in zip(decisions, results, strict=True):
        console.print(decision_table(decision, result))
        console.print(footnote(result), style="dim")
        console.print()


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
    return cost


def toy_notice() -> str:
    """Return the warning that belongs to the catalog's demo model."""
    return (
        "SmolLM2-135M is a toy: it shows that everything works, and it decides about\n"
        "as well as chance. Deploy a model that can decide: MODEL=path/to.gguf make demo"
    )


if __name__ == "__main__":
    sys.exit(main())
