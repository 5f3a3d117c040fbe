"""Runs the CDK CLI on a copy of the app against an emulator, as its user would on the app."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emulator.running import ROOT, Emulator

# The client's package states the version of them all.
APP = ("app.py", "cdk.json", "stacks", "lambda", "model", "container", "client/ballot/__init__.py")
_IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")


class CdkError(Exception):
    """A command of the CDK CLI failed; the message is all that it printed."""


class CdkApp:
    """A copy of Ballot's CDK app in a folder of its own, where it can be changed."""

    def __init__(self, emulator: Emulator, folder: Path, *, environment: str) -> None:
        """Copy the app into `folder`, for the environment called `environment`."""
        self.folder = folder
        self.environment = environment
        self._emulator = emulator
        for name in APP:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=_IGNORED, dirs_exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def change_settings(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Let `change` edit the environment's settings in the copy's `cdk.json`."""
        path = self.folder / "cdk.json"
        settings = json.loads(path.read_text())
        change(settings["context"]["environments"][self.environment])
        path.write_text(json.dumps(settings, indent=2))

    def bootstrap(self) -> str:
        """Run `cdk bootstrap`."""
        return self._cdk("bootstrap", f"aws://{self._emulator.account}/{self._emulator.region}")

    def deploy(self, *stacks: str, on_line: Callable[[str], None] | None = None) -> str:
        """Run `cdk deploy` for `stacks`, or all of them.

        Raises:
            CdkError: the deployment failed.
        """
        return self._cdk("deploy", *_chosen(stacks), "--require-approval=never", on_line=on_line)

    def destroy(self, *stacks: str, on_line: Callable[[str], None] | None = None) -> str:
        """Run `cdk destroy` for `stacks`, or all of them."""
        return self._cdk("destroy", *_chosen(stacks), "--force", on_line=on_line)

    def _cdk(
        self, command: str, *arguments: str, on_line: Callable[[str], None] | None = None
    ) -> str:
        words = ["cdk", command, *arguments, *self._options()]
        with subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if on_line:
                    on_line(line.rstrip())
        output = "".join(lines)
        if process.returncode != 0:
            raise CdkError(output)
        return output

    def _options(self) -> list[str]:
        # With the environment's own Python, wherever this one's folder is.
        app = f"{sys.executable} app.py"
        return [
            "--context",
            f"environment={self.environment}",
            "--app",
            app,
            "--progress=events",
            "--no-notices",
            "--no-color",
            "--ci",
        ]

    def _environment(self) -> Mapping[str, str]:
        return {**self._emulator.environment, "PYTHONDONTWRITEBYTECODE": "1"}


def _chosen(stacks: tuple[str, ...]) -> tuple[str, ...]:
    return stacks or ("--all",)
