"""Synthesizes environments, and turns templates into what a person reads.

In a readable template resources go by their construct's path instead of their logical id, and
every intrinsic function is text: `${Bucket/Bucket.Arn}/models/*`. Hashes that change with any
source file are cut to `<asset>` and `<inputs>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import cdk_nag

from stacks.assembly import assemble
from stacks.environment import choose_environment, read_environment
from tests.adapter_process import ROOT

Template = dict[str, Any]
CONTEXT = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]
ENVIRONMENTS: dict[str, Any] = CONTEXT["environments"]
FLAGS = {key: value for key, value in CONTEXT.items() if key != "environments"}


@dataclass(frozen=True)
class Synthesis:
    """A synthesized environment: its templates by stack, and what cdk-nag finds."""

    folder: Path
    templates: dict[str, Template]
    findings: list[str]

    @property
    def template_files(self) -> list[Path]:
        """The templates as files."""
        return sorted(self.folder.glob("*.template.json"))

    def readable(self) -> dict[str, Template]:
        """Return the templates by stack, in readable form."""
        exports = {}
        for stack, template in self.templates.items():
            for output in template.get("Outputs", {}).values():
                if name := output.get("Export", {}).get("Name"):
                    exports[name] = f"{stack}:{_Reader(template, {}).text(output['Value'])}"
        return {
            stack: _Reader(template, exports).template()
            for stack, template in self.templates.items()
        }


def synthesize(
    name: str,
    folder: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    account: str | None = None,
    region: str | None = None,
) -> Synthesis:
    """Synthesize an environment of cdk.json, or one with other settings."""
    app = cdk.App(
        outdir=str(folder),
        context={**FLAGS, "aws:cdk:enable-path-metadata": True},
        analytics_reporting=False,
    )
    environment = (
        choose_environment(name, ENVIRONMENTS)
        if settings is None
        else read_environment(name, settings)
    )
    assemble(app, environment, env=cdk.Environment(account=account, region=region))
    report = cdk_nag.AwsSolutionsChecks(app).validate_scope(app)
    assembly = app.synth()
    return Synthesis(
        folder,
        {stack.stack_name: stack.template for stack in assembly.stacks},
        [
            f"{violation.rule_name} on {resource.construct_path}"
            for violation in report.violations or []
            for resource in violation.violating_resources
        ],
    )


def resources(template: Template, kind: str) -> list[Any]:
    """Return the properties of all resources of a type."""
    return [
        resource.get("Properties", {})
        for resource in template["Resources"].values()
        if resource["Type"] == kind
    ]


def only(template: Template, kind: str) -> Any:
    """Return the properties of the only resource of a type."""
    (properties,) = resources(template, kind)
    return properties


class _Reader:
    """Makes one template readable."""

    def __init__(self, template: Template, exports: Mapping[str, str]) -> None:
        self._template = template
        self._exports = exports
        self._paths = {
            logical_id: _path(resource) for logical_id, resource in template["Resources"].items()
        }
        self._hashes = {
            resource["Properties"]["InputsHash"]
            for resource in template["Resources"].values()
            if "InputsHash" in resource.get("Properties", {})
        }

    def template(self) -> Template:
        """Return the readable template: its resources by path, and its outputs."""
        return {
            "Resources": {
                self._paths[logical_id]: self._resource(resource)
                for logical_id, resource in self._template["Resources"].items()
            },
            "Outputs": {
                name: self.text(output["Value"])
                for name, output in self._template.get("Outputs", {}).items()
                if "Export" not in output
            },
        }

    def text(self, value: Any) -> str:
        """Return a value whose intrinsic functions are text."""
        match value:
            case {"Ref": str(name)}:
                return f"${{{self._paths.get(name, name)}}}"
            case {"Fn::GetAtt": [str(name), str(attribute)]}:
                return f"${{{self._paths[name]}.{attribute}}}"
            case {"Fn::Sub": str(text)}:
                return self._cut(text)
            case {"Fn::ImportValue": str(name)}:
                return self._exports[name]
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(self.text(part) for part in parts)
            case {"Fn::Select": [index, source]}:
                return f"{self.text(source)}[{index}]"
            case {"Fn::Split": [str(separator), source]}:
                return f"{self.text(source)}.split({separator})"
            case {"Fn::GetAZs": _}:
                return "${zones}"
            case _:
                return self._cut(str(value))

    def _resource(self, resource: Mapping[str, Any]) -> Any:
        kept = {key: resource[key] for key in ("Type", "DeletionPolicy") if key in resource}
        waits = resource.get("DependsOn", [])
        if waits:
            kept["DependsOn"] = sorted(self._paths[name] for name in waits)
        return {**kept, "Properties": self._value(resource.get("Properties", {}))}

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(part) for part in value]
        if isinstance(value, dict):
            if len(value) == 1 and next(iter(value)).startswith(("Fn::", "Ref")):
                return _parsed(self.text(value))
            return {
                key: self._tags(part) if key == "Tags" else self._value(part)
                for key, part in value.items()
            }
        return _parsed(self._cut(value)) if isinstance(value, str) else value

    def _tags(self, tags: list[Mapping[str, Any]]) -> dict[str, str]:
        return {tag["Key"]: self.text(tag["Value"]) for tag in tags}

    def _cut(self, text: str) -> str:
        for known in self._hashes:
            text = text.replace(known, "<inputs>")
        return re.sub(r"[0-9a-f]{64}\.zip", "<asset>.zip", text)


def _path(resource: Mapping[str, Any]) -> str:
    path = str(resource["Metadata"]["aws:cdk:path"])
    return path.partition("/")[2].removesuffix("/Resource").removesuffix("/Default")


def _parsed(text: str) -> Any:
    """Return a text that holds a JSON object as that object."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
