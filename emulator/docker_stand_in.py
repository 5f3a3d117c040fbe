"""A `docker` command for emulated builds: no engine, no image is built, nothing is run.

`build` keeps the build context, the Dockerfile and the arguments as an "image"; `push` registers
its manifest in the emulated ECR, asking every permission that a real push asks. What a Dockerfile
says is not executed: only that the file is there, that `FROM` is given a base and that the sources
of `COPY` exist is checked. `cp` copies one thing out of an image, its bill of materials, which the
context's own script makes of the base and the adapter: nothing else is there. Each command says in
its output that it is a stand-in.

Runs in the emulator's Python, which has botocore.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from emulator.image_store import MANIFEST_TYPE, Image, ImageStore, NoSuchImage, context_files

_ECR_REFERENCE = re.compile(
    r"(?P<host>\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com)/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_SBOM = "/opt/ballot/sbom.cdx.json"
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")


def say(text: str) -> None:
    """Write a line that cannot be taken for Docker's own."""
    print(f"docker stand-in: {text}", flush=True)


def fail(text: str) -> NoReturn:
    """End with a message, as Docker does: status 1."""
    print(f"docker stand-in: ERROR: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def store() -> ImageStore:
    """Return the store of the emulator that runs this build."""
    folder = os.environ.get("EMULATOR_IMAGES")
    if not folder:
        fail("this command works inside the emulator's builds only")
    return ImageStore(Path(folder))


def build(arguments: Sequence[str]) -> None:
    """`docker build`: keep what an image would be made from."""
    parser = argparse.ArgumentParser(prog="docker build", allow_abbrev=False)
    parser.add_argument("-f", "--file")
    parser.add_argument("-t", "--tag", action="append", default=[])
    parser.add_argument("--build-arg", action="append", default=[])
    for option in ("--platform", "--target", "--progress", "--label", "--network", "--provenance"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--cache-from", "--cache-to", "--sbom", "--output"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--pull", "--no-cache", "--quiet", "--load", "--push"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("context", type=Path)
    options = parser.parse_args(arguments)
    dockerfile = Path(options.file) if options.file else options.context / "Dockerfile"
    if not dockerfile.is_file():
        fail(f"failed to read dockerfile: open {dockerfile}: no such file or directory")
    text, given = dockerfile.read_text(), _build_arguments(options.build_arg)
    files = context_files(options.context)
    base = _check_dockerfile(text, given, files)
    image = Image(base=base, dockerfile=text, arguments=given, files=files)
    images = store()
    images.add(image, context=options.context)
    say(f"no engine here: kept {len(files)} files of the context on {base}; RUN was not run")
    for name in options.tag or [image.digest]:
        images.tag(image.digest, _full(name))
        say(f"{image.digest} is {name}")
    if options.push:
        for name in options.tag:
            push([name])


def _build_arguments(given: Sequence[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    return {name: value if sign else os.environ.get(name, "") for name, sign, value in pairs}


def _check_dockerfile(text: str, given: dict[str, str], files: dict[str, str]) -> str:
    """Return the base of the last stage.

    Ends the process where an instruction is not there that must be, or names a missing source.
    """
    values, stages, base = dict(given), set[str](), ""
    for line in _instructions(text):
        keyword, _, rest = line.partition(" ")
        words = shlex.split(_expand(rest, values), comments=False, posix=True)
        flags = [word for word in words if word.startswith("--")]
        words = [word for word in words if not word.startswith("--")]
        match keyword.upper():
            case "ARG":
                name, sign, default = words[0].partition("=")
                if name in given or sign:
                    values[name] = given.get(name, default)
            case "FROM":
                if not words:
                    fail(f"base name ({rest}) should not be blank")
                base = words[0]
                if len(words) == 3:
                    stages.add(words[2])
            case "COPY" | "ADD" if not any(flag.startswith("--from=") for flag in flags):
                for source in words[:-1]:
                    _check_source(source.strip("[],"), files)
    if not base:
        fail("the Dockerfile has no build stage: there is no FROM")
    unused = sorted(set(given) - {n for n in given if re.search(rf"\bARG\s+{n}\b", text)})
    if unused:
        say(f"WARNING: build arguments {unused} were not consumed")
    return base


def _check_source(source: str, files: dict[str, str]) -> None:
    wanted = source.removeprefix("./").rstrip("/")
    if "://" in wanted or wanted in ("", "."):
        return
    if any(Path(name).match(wanted) or f"{name}/".startswith(f"{wanted}/") for name in files):
        return
    fail(f'failed to compute cache key: "/{wanted}": not found')


def _instructions(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    joined = re.sub(r"<<-?['\"]?(\w+)['\"]?.*?\n\1$", "", joined, flags=re.DOTALL | re.MULTILINE)
    keywords = ("ARG ", "FROM ", "COPY ", "ADD ")
    return [
        line.strip() for line in joined.splitlines() if line.strip().upper().startswith(keywords)
    ]


def _expand(text: str, values: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda m: values.get(m[1] or m[3]) or m[2] or "", text)


def pull(arguments: Sequence[str]) -> None:
    """`docker pull`: note the name of an image that is not fetched."""
    parser = argparse.ArgumentParser(prog="docker pull", allow_abbrev=False)
    parser.add_argument("--platform")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("reference")
    options = parser.parse_args(arguments)
    images = store()
    digest = options.reference.rpartition("@")[2]
    with contextlib.suppress(NoSuchImage):
        images.get(digest)
        images.tag(digest, options.reference)
        say(f"{options.reference} is here already")
        return
    image = Image(base=options.reference)
    images.add(image)
    images.tag(image.digest, _full(options.reference))
    say(f"no engine here: {options.reference} is noted, not fetched")


def tag(arguments: Sequence[str]) -> None:
    """`docker tag`."""
    if len(arguments) != 2:
        fail('"docker tag" requires exactly 2 arguments')
    images = store()
    images.tag(_resolve(images, arguments[0]), _full(arguments[1]))


def push(arguments: Sequence[str]) -> None:
    """`docker push` to the emulated ECR."""
    parser = argparse.ArgumentParser(prog="docker push", allow_abbrev=False)
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("reference")
    options = parser.parse_args(arguments)
    target = _ECR_REFERENCE.fullmatch(options.reference)
    if target is None:
        fail(f"{options.reference} is not in an ECR repository of the emulated account")
    images = store()
    image = images.get(_resolve(images, options.reference))
    _put(image, repository=target["name"], image_tag=target["tag"] or "latest")
    say(f"{options.reference}: digest: {image.digest} (a manifest, without layers)")


def _put(image: Image, *, repository: str, image_tag: str) -> None:
    import botocore.exceptions
    import botocore.session

    ecr: Any = botocore.session.Session().create_client("ecr")
    try:
        ecr.get_authorization_token()
        ecr.batch_check_layer_availability(repositoryName=repository, layerDigests=image.layers)
        for layer in image.layers:
            upload = ecr.initiate_layer_upload(repositoryName=repository)["uploadId"]
            part = {"repositoryName": repository, "uploadId": upload}
            ecr.upload_layer_part(**part, partFirstByte=0, partLastByte=1, layerPartBlob=b"{}")
            ecr.complete_layer_upload(**part, layerDigests=[layer])
        ecr.put_image(
            repositoryName=repository,
            imageManifest=image.manifest,
            imageManifestMediaType=MANIFEST_TYPE,
            imageTag=image_tag,
            imageDigest=image.digest,
        )
    except botocore.exceptions.ClientError as error:
        fail(str(error))


def create(arguments: Sequence[str]) -> None:
    """`docker create --name NAME IMAGE`: name an image to copy from; no container is made."""
    parser = argparse.ArgumentParser(prog="docker create", allow_abbrev=False)
    parser.add_argument("--name", required=True)
    parser.add_argument("reference")
    options = parser.parse_args(arguments)
    images = store()
    images.tag(_resolve(images, options.reference), _container(options.name))
    say(f"no engine here: {options.name} is {options.reference}, to copy from")


def copy(arguments: Sequence[str]) -> None:
    """`docker cp NAME:PATH FILE`, of a bill of materials alone."""
    if len(arguments) != 2:
        fail('"docker cp" requires exactly 2 arguments')
    name, _, path = arguments[0].partition(":")
    images = store()
    digest = _resolve(images, _container(name))
    context = images.context(digest)
    if path != _SBOM or not (context / "sbom.py").is_file():
        fail(f"Could not find the file {path} in container {name}: RUN was not run")
    ended = subprocess.run(
        [sys.executable, context / "sbom.py", "write"],
        env={
            "PREFIX": str(context / "no-environment"),
            "LLAMA_LIB_DIR": str(context / "no-libraries"),
            "APP": str(context),
            "BASE_IMAGE": images.get(digest).base,
            "PATH": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        fail(ended.stderr.strip())
    Path(arguments[1]).write_text(ended.stdout)
    say(f"{path} has the base and the adapter alone: RUN was not run")


def _container(name: str) -> str:
    return f"container/{name}:created"


def image(arguments: Sequence[str]) -> None:
    """`docker image inspect` and `docker image rm`."""
    match list(arguments):
        case ["inspect", *rest]:
            inspect(rest)
        case ["rm" | "prune", *_]:
            say("nothing to remove")
        case _:
            fail(f"unknown command: docker image {' '.join(arguments)}")


def inspect(arguments: Sequence[str]) -> None:
    """`docker inspect`: JSON, or one of the formats that scripts use."""
    parser = argparse.ArgumentParser(prog="docker image inspect", allow_abbrev=False)
    parser.add_argument("-f", "--format")
    parser.add_argument("reference")
    options = parser.parse_args(arguments)
    images = store()
    digest = _resolve(images, options.reference)
    names = [name for name, found in images.tags().items() if found == digest]
    repositories = sorted({name.rpartition(":")[0] for name in names if "@" not in name})
    record = {
        "Id": digest,
        "RepoTags": names,
        "RepoDigests": [f"{name}@{digest}" for name in repositories],
        "Os": "linux",
        "Architecture": "amd64",
    }
    match (options.format or "").replace(" ", ""):
        case "":
            print(json.dumps([record], indent=4))
        case "{{.Id}}":
            print(record["Id"])
        case "{{index.RepoDigests0}}":
            print(f"{repositories[0]}@{digest}" if repositories else "")
        case other:
            fail(f"the format {other!r} is not known here")


def login(arguments: Sequence[str]) -> None:
    """`docker login`: read the password; ECR checked who asks when it gave it out."""
    if "--password-stdin" in arguments and not sys.stdin.readline().strip():
        fail("cannot perform an interactive login: the password is empty")
    print("Login Succeeded", flush=True)


def _resolve(images: ImageStore, reference: str) -> str:
    try:
        return images.resolve(reference)
    except NoSuchImage:
        fail(f"No such image: {reference}")


def _full(name: str) -> str:
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"


def _quietly(arguments: Sequence[str]) -> None:
    say("this command does nothing here")


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "build": build,
    "cp": copy,
    "create": create,
    "image": image,
    "info": _quietly,
    "inspect": inspect,
    "login": login,
    "logout": _quietly,
    "pull": pull,
    "push": push,
    "rmi": _quietly,
    "tag": tag,
    "version": _quietly,
}


def main(arguments: Sequence[str]) -> int:
    """Run one command."""
    given = list(arguments)
    if given[:1] == ["buildx"]:
        given = given[1:]
    if not given or given[0] not in COMMANDS:
        fail(f"'{' '.join(given[:1])}' is not a command of the stand-in; it runs no containers")
    COMMANDS[given[0]](given[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
