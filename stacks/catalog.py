"""Pinned models and images: `catalog.json`, and what an environment adds to it or replaces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stacks.reading import Format, Problems, Section

ImageName = Literal["cpu", "cuda", "chat-cpu", "chat-cuda"]
IMAGE_NAMES: tuple[ImageName, ...] = get_args(ImageName)
BUILT_IMAGES = ("cpu", "cuda")
GPU_IMAGES = ("cuda", "chat-cuda")
AMI_VERSIONS = (
    "al2-ami-sagemaker-inference-gpu-2",
    "al2-ami-sagemaker-inference-gpu-2-1",
    "al2-ami-sagemaker-inference-gpu-3-1",
    "al2023-ami-sagemaker-inference-gpu-4-1",
)
SOURCE_KINDS = ("hub", "s3", "wheel")

SHA256 = Format(pattern=r"[0-9a-f]{64}", words="a SHA-256: 64 lower-case hexadecimal digits")
COMMIT = Format(
    pattern=r"[0-9a-f]{40}",
    words="a full commit: 40 lower-case hexadecimal digits, for branches and tags move",
)
DIGEST = Format(
    pattern=r"[a-z0-9][a-z0-9./:_-]*[a-z0-9]@sha256:[0-9a-f]{64}",
    words="an image by its full digest, repository@sha256:<64 hexadecimal digits>, for tags move",
)
BINDINGS = Format(
    pattern=r"llama-cpp-python(==\d[\w.]*| @ git\+https://\S+@[0-9a-f]{40})",
    words="llama-cpp-python==VERSION or llama-cpp-python @ git+https://...@<40 hexadecimal digits>",
)
HUB_REPOSITORY = Format(
    pattern=r"[\w-][\w.-]*/[\w-][\w.-]*", words="a repository of the hub, owner/name"
)
GGUF_FILE = Format(pattern=r"([\w.-]+/)*[\w-][\w.-]*\.gguf", words="the path of a .gguf file")
GGUF_URI = Format(
    pattern=r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/(\S+/)?[\w-][\w.-]*\.gguf",
    words="s3://bucket/path/of/a.gguf",
)
NAME = Format(
    pattern=r"[a-z0-9]+([.-][a-z0-9]+)*",
    words="a name of lower-case letters and digits, with single dots or dashes between them",
)
PROJECT = Format(pattern=r"[A-Za-z0-9][\w.-]*", words="a project of the Python package index")
VERSION = Format(pattern=r"\d[\w.+!-]*", words="a full version")
WHEEL = Format(pattern=r"[\w.+-]+\.whl", words="the file name of a wheel")
OBJECT_VERSION = Format(pattern=r"[\w.+/=-]{1,1024}", words="the version id of an S3 object")


# As `model/sources.py` reads names, which fetches what is listed here.
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_MOST_SHARDS = 999


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GGUF, fixed by its SHA-256, and where to get it."""

    name: str
    source: Mapping[str, Any]
    sha256: str
    tokenizer: Mapping[str, str] | None

    @property
    def file(self) -> str:
        """The name of the GGUF in the artifact; of a split one, its first shard."""
        return self._path().rsplit("/", 1)[-1]

    @property
    def s3_uris(self) -> tuple[str, ...]:
        """The S3 objects that it comes from: all shards of the model that its URI names one of."""
        return _all_shards(str(self.source["uri"])) if self.source["kind"] == "s3" else ()

    @property
    def origin(self) -> str:
        """Where it comes from, in one line: repository@revision, a URI, or project==version."""
        match self.source["kind"]:
            case "hub":
                return f"{self.source['repository']}@{self.source['revision']}"
            case "s3":
                return self.s3_uris[0]
            case _:
                return f"{self.source['project']}=={self.source['version']}"

    def _path(self) -> str:
        match self.source["kind"]:
            case "hub":
                return str(self.source["files"][0])
            case "s3":
                return self.s3_uris[0]
            case _:
                return str(self.source["member"])


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image: its base by digest, the bindings built onto it, and the AMI it needs."""

    name: ImageName
    base: str
    bindings: str | None
    inference_ami_version: str | None


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The models and images that endpoints may name."""

    models: Mapping[str, Model]
    images: Mapping[ImageName, Image]


def _all_shards(name: str) -> tuple[str, ...]:
    match = _SHARD.fullmatch(name)
    if match is None or not 0 < int(match["count"]) <= _MOST_SHARDS:
        return (name,)
    return tuple(
        f"{match['stem']}-{index:05d}-of-{match['count']}.gguf"
        for index in range(1, int(match["count"]) + 1)
    )


def read_catalog(environment: Section, problems: Problems) -> Catalog:
    """Read `catalog.json`, then the environment's own `models` and `images` over it."""
    content = json.loads(Path(__file__).with_name("catalog.json").read_text(encoding="utf-8"))
    catalog = Section(content, path="catalog.json", problems=problems)
    models = {**_models(catalog), **_models(environment)}
    images = {**_images(catalog), **_images(environment)}
    catalog.finish()
    return Catalog(models=models, images=images)


def _models(section: Section) -> dict[str, Model]:
    return {name: _model(name, entry) for name, entry in section.sections("models", NAME)}


def _model(name: str, section: Section) -> Model:
    source = section.section("source", required=True)
    tokenizer = section.section("tokenizer")
    model = Model(
        name=name,
        source={} if source is None else _source(source),
        sha256=section.text("sha256", SHA256, required=True),
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
    )
    section.integer("bytes", 1, 1 << 50, default=1)
    section.finish()
    return model


def _tokenizer(section: Section) -> dict[str, str]:
    tokenizer = {
        "repository": section.text("repository", HUB_REPOSITORY, required=True),
        "revision": section.text("revision", COMMIT, required=True),
    }
    section.finish()
    return tokenizer


def _source(section: Section) -> dict[str, Any]:
    kind = section.choice("kind", SOURCE_KINDS, required=True)
    readers = {"hub": _hub_source, "s3": _s3_source, "wheel": _wheel_source}
    if kind not in readers:
        return {}
    source = {"kind": kind, **readers[kind](section)}
    section.finish()
    return source


def _hub_source(section: Section) -> dict[str, Any]:
    return {
        "repository": section.text("repository", HUB_REPOSITORY, required=True),
        "revision": section.text("revision", COMMIT, required=True),
        "files": list(section.texts("files", GGUF_FILE, most=100, required=True)),
    }


def _s3_source(section: Section) -> dict[str, Any]:
    version = section.text("version", OBJECT_VERSION)
    uri = section.text("uri", GGUF_URI, required=True)
    return {"uri": uri, **({"version": version} if version else {})}


def _wheel_source(section: Section) -> dict[str, Any]:
    return {
        "project": section.text("project", PROJECT, required=True),
        "version": section.text("version", VERSION, required=True),
        "filename": section.text("filename", WHEEL, required=True),
        "wheel_sha256": section.text("wheel_sha256", SHA256, required=True),
        "member": section.text("member", GGUF_FILE, required=True),
    }


def _images(section: Section) -> dict[ImageName, Image]:
    names = Format(pattern="|".join(IMAGE_NAMES), words=f"one of {', '.join(IMAGE_NAMES)}")
    entries = dict(section.sections("images", names))
    return {name: _image(name, entries[name]) for name in IMAGE_NAMES if name in entries}


def _image(name: ImageName, section: Section) -> Image:
    image = Image(
        name=name,
        base=section.text("base", DIGEST, required=True),
        bindings=section.text("bindings", BINDINGS, required=True)
        if name in BUILT_IMAGES
        else None,
        inference_ami_version=section.choice("inference_ami_version", AMI_VERSIONS, required=True)
        if name in GPU_IMAGES
        else None,
    )
    section.finish()
    return image
