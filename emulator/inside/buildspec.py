"""Reads a CodeBuild buildspec, version 0.2."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

PHASES = ("install", "pre_build", "build", "post_build")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BuildspecError(Exception):
    """The buildspec is not one that CodeBuild takes."""


@dataclass(frozen=True)
class Phase:
    """The commands of a phase, and those that run at its end whatever happened."""

    commands: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    on_failure: str = "ABORT"
    """ABORT or CONTINUE; the build phase's own default is to go on to post_build alone."""


@dataclass(frozen=True)
class Buildspec:
    """What a build does."""

    variables: dict[str, str] = field(default_factory=dict)
    exported: tuple[str, ...] = ()
    shell: str = "bash"
    phases: dict[str, Phase] = field(default_factory=dict)


def parse(text: str) -> Buildspec:
    """Read a buildspec.

    Raises:
        BuildspecError: it is not valid, or asks for what is not emulated.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BuildspecError(f"YAML_FILE_ERROR: {error}") from error
    if not isinstance(document, dict):
        raise BuildspecError("YAML_FILE_ERROR: the buildspec is not a map")
    if str(document.get("version")) not in ("0.2", "1.0"):
        raise BuildspecError(f"YAML_FILE_ERROR: version {document.get('version')!r} is not 0.2")
    _known(document, {"version", "run-as", "env", "phases", "artifacts", "cache"}, "buildspec")
    environment = _section(document, "env")
    _known(
        environment, {"shell", "variables", "exported-variables", "git-credential-helper"}, "env"
    )
    phases = _section(document, "phases")
    _known(phases, set(PHASES), "phases")
    if not phases:
        raise BuildspecError("YAML_FILE_ERROR: phases is missing")
    exported = tuple(map(str, environment.get("exported-variables") or ()))
    for name in exported:
        if not _NAME.fullmatch(name):
            raise BuildspecError(f"YAML_FILE_ERROR: {name!r} cannot be exported")
    shell = str(environment.get("shell", "bash"))
    if shell not in ("bash", "sh", "/bin/sh"):
        raise BuildspecError(f"YAML_FILE_ERROR: the shell {shell!r} is not emulated")
    return Buildspec(
        variables={str(k): str(v) for k, v in _section(environment, "variables").items()},
        exported=exported,
        shell="bash" if shell == "bash" else "sh",
        phases={name: _phase(name, _section(phases, name)) for name in phases},
    )


def _phase(name: str, section: dict[str, Any]) -> Phase:
    known = {"run-as", "on-failure", "commands", "finally", "runtime-versions"}
    _known(section, known, f"phases.{name}")
    on_failure = section.get("on-failure", "CONTINUE" if name == "build" else "ABORT")
    if on_failure not in ("ABORT", "CONTINUE"):
        raise BuildspecError(f"YAML_FILE_ERROR: phases.{name}.on-failure {on_failure!r}")
    return Phase(
        commands=_commands(section, "commands"),
        always=_commands(section, "finally"),
        on_failure=on_failure,
    )


def _commands(section: dict[str, Any], key: str) -> tuple[str, ...]:
    found = section.get(key) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        raise BuildspecError(f"YAML_FILE_ERROR: {key} is not a list of strings")
    return tuple(found)


def _section(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key) or {}
    if not isinstance(found, dict):
        raise BuildspecError(f"YAML_FILE_ERROR: {key} is not a map")
    return found


def _known(section: dict[str, Any], keys: set[str], where: str) -> None:
    if unknown := sorted(set(map(str, section)) - keys):
        raise BuildspecError(f"YAML_FILE_ERROR: {where}: {', '.join(unknown)} is not emulated")
