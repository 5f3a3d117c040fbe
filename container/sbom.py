#!/usr/bin/env python3
"""The bill of materials of a decision image, as CycloneDX 1.6: https://cyclonedx.org/.

    python sbom.py note REPORT...    condense pip's installation reports: what came of which file
    python sbom.py write             list all that is in the image

Both write to the standard output. `write` runs inside the image and reads, by variables:

    PREFIX          the Python environment, with `artifacts.json` in it, which `note` wrote
    LLAMA_LIB_DIR   llama.cpp's libraries, of the base image
    APP             the folder that holds adapter/
    BASE_IMAGE      the base image, by its digest

and the RPM database, if there is one. The same image gets the same list: it has no date.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]
_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_IMAGE = re.compile(r"(?P<repository>[^@]+)@sha256:(?P<digest>[0-9a-f]{64})")
_RPM_FORMAT = r"%{NAME}\t%{EPOCHNUM}\t%{VERSION}-%{RELEASE}\t%{ARCH}\t%{LICENSE}\n"


def note(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return where each installed package came from: its file's SHA-256, or its commit."""
    noted = {}
    for report in reports:
        for item in report["install"]:
            came = item["download_info"]
            hashes = came.get("archive_info", {}).get("hashes", {})
            commit = came.get("vcs_info", {}).get("commit_id")
            found = {"sha256": hashes.get("sha256"), "commit": commit}
            if commit:
                found["url"] = came["url"]
            noted[_normal(item["metadata"]["name"])] = {
                key: value for key, value in found.items() if value
            }
    return noted


def write(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the bill of materials of the image that this runs in."""
    prefix, libraries = Path(environ["PREFIX"]), Path(environ["LLAMA_LIB_DIR"])
    components = [
        _base(environ["BASE_IMAGE"]),
        _adapter(Path(environ["APP"])),
        *_python_packages(prefix),
        *_files(libraries, "*.so*"),
        *_rpm_packages(),
    ]
    return _document(components)


def _document(components: Sequence[Component]) -> dict[str, Any]:
    image = {"type": "container", "bom-ref": "image", "name": "ballot-decision-image"}
    content = {
        "metadata": {"component": image},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [item["bom-ref"] for item in components]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": serial.urn,
        "version": 1,
        **content,
    }


def _component(
    kind: str, ref: str, name: str, *, version: str = "", sha256: str = "", **more: Any
) -> Component:
    made: Component = {"type": kind, "bom-ref": ref, "name": name}
    if version:
        made["version"] = version
    if sha256:
        made["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return made | more


def _base(image: str) -> Component:
    match = _IMAGE.fullmatch(image)
    if match is None:
        raise SystemExit(f"sbom: BASE_IMAGE is {image!r}, not an image with its digest")
    repository, digest = match["repository"], f"sha256:{match['digest']}"
    name = repository.rpartition("/")[2]
    where = quote(repository, safe="")
    purl = f"pkg:oci/{quote(name.lower())}@{quote(digest, safe='')}?repository_url={where}"
    return _component(
        "container", purl, repository, version=digest, sha256=match["digest"], purl=purl
    )


def _adapter(app: Path) -> Component:
    parts = list(_files(app, "adapter/**/*.py"))
    return _component("application", "adapter", "ballot-adapter", components=parts)


def _files(folder: Path, pattern: str) -> Iterator[Component]:
    """Yield the files, but not other names of the same file."""
    for path in sorted(folder.glob(pattern)):
        if path.is_file() and not path.is_symlink():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            name = str(path.relative_to(folder))
            yield _component("file", f"file:{name}", name, sha256=digest)


def _python_packages(prefix: Path) -> Iterator[Component]:
    artifacts = prefix / "artifacts.json"
    noted = json.loads(artifacts.read_text("utf-8")) if artifacts.is_file() else {}
    folders = [str(folder) for folder in prefix.glob("lib/python3*/site-packages")]
    found = {_normal(package.metadata["Name"]): package for package in distributions(path=folders)}
    for name, package in sorted(found.items()):
        came = noted.get(name, {})
        purl = f"pkg:pypi/{name}@{quote(package.version)}"
        if commit := came.get("commit"):
            vcs = quote(f"git+{came['url']}@{commit}", safe="")
            purl = f"{purl}?vcs_url={vcs}"
        yield _component(
            *("library", purl, name),
            version=package.version,
            sha256=came.get("sha256", ""),
            purl=purl,
            **_licenses(package),
        )


def _licenses(package: Distribution) -> dict[str, Any]:
    expression = package.metadata.get_all("License-Expression")
    if expression:
        return {"licenses": [{"expression": expression[0]}]}
    classifiers = package.metadata.get_all("Classifier") or []
    names = [item.rpartition(" :: ")[2] for item in classifiers if item.startswith("License ::")]
    words = (package.metadata.get_all("License") or [""])[0].partition("\n")[0]
    licenses = [{"license": {"name": name}} for name in names or [words] if name]
    return {"licenses": licenses} if licenses else {}


def _rpm_packages() -> Iterator[Component]:
    """Yield what the base image's distribution has installed; nothing where it is another."""
    if shutil.which("rpm") is None:
        return
    listed = subprocess.run(
        ["rpm", "-qa", "--qf", _RPM_FORMAT], capture_output=True, text=True, check=True
    )
    for line in sorted(set(listed.stdout.splitlines())):
        name, epoch, version, architecture, license = line.split("\t")
        purl = (
            f"pkg:rpm/amzn/{quote(name)}@{quote(version)}?arch={quote(architecture)}&epoch={epoch}"
        )
        licenses = [{"license": {"name": license}}]
        yield _component("library", purl, name, version=version, purl=purl, licenses=licenses)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str]) -> int:
    """Write what the arguments ask for."""
    match list(arguments):
        case ["note", *paths] if paths:
            reports = [json.loads(Path(path).read_text("utf-8")) for path in paths]
            written = note(reports)
        case ["write"]:
            written = write(os.environ)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
