"""Drives pages in headless Chromium, where `make setup` has put it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.adapter_process import BUILD

CHROMIUM = BUILD / "browser" / "chromium"
LIBRARIES = BUILD / "browser" / "lib"
# A headless shell as root in a container: no sandbox, no GPU, nothing fetched on its own.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-zygote", "--disable-background-networking")


@contextmanager
def chromium(path: Path = CHROMIUM) -> Iterator[Browser]:
    """Yield a running browser.

    Raises:
        FileNotFoundError: there is none at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; make setup puts it there")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, env=_environment()
        )
        try:
            yield browser
        finally:
            browser.close()


def _environment() -> dict[str, str | float | bool]:
    """Return this process's environment, with the libraries that came with the browser."""
    paths = [str(LIBRARIES), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
