"""The decision image: its steps run here, without Docker, over libraries that stand for AWS's.

What Docker alone does is not shown: that the base images are as `docs` describe them, and that
Amazon Linux has the compilers' packages. The Dockerfiles' own lines are read and run, with the
paths of this machine in place of the image's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import tiny_gguf
from gguf_header import read_header
from scripts._cache import Cache
from scripts._pins import BUILD_BACKEND, LLAMA
from tests.adapter_process import BUILD, ROOT, AdapterProcess, environment
from tests.test_startup import own_libraries

CONTAINER = ROOT / "container"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
OLDER_BINDINGS = BUILD / "bindings-0.3.35"
IMAGE_VENV = "/opt/ballot/venv"
LIST_PACKAGES = """
import json
from importlib.metadata import distributions

print(json.dumps([(found.name, found.version) for found in distributions()]))
"""
DIGEST = f"sha256:{'ab' * 32}"
SBOM = f"sboms/{'ab' * 32}.cdx.json"


# --- the Dockerfiles' text


def instructions(name: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions and their arguments, in order."""
    text = re.sub(r"^#.*\n", "", (CONTAINER / name).read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for line in lines if line for word, _, rest in [line.partition(" ")]]


def arguments(name: str, word: str) -> list[str]:
    return [rest for found, rest in instructions(name) if found == word]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name: str) -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--no-color", CONTAINER / name],
        capture_output=True,
        text=True,
    )
    assert (linted.stdout, linted.stderr, linted.returncode) == ("", "", 0)


@pytest.mark.parametrize(("name", "image"), [("Dockerfile", "cpu"), ("Dockerfile.cuda", "cuda")])
def test_the_base_and_its_bindings_are_those_of_the_catalog(name: str, image: str) -> None:
    catalog = json.loads((ROOT / "stacks" / "catalog.json").read_text())["images"][image]
    defaults = dict(rest.split("=", 1) for rest in arguments(name, "ARG") if "=" in rest)
    assert re.fullmatch(r".+@sha256:[0-9a-f]{64}", defaults["BASE_IMAGE"])
    assert defaults["BASE_IMAGE"] == catalog["base"]
    assert defaults["BINDINGS"].strip('"') == catalog["bindings"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_final_stage_is_the_base_and_what_runs(name: str) -> None:
    found = instructions(name)
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    assert found[start] == ("FROM", "${BASE_IMAGE}")
    final = found[start + 1 :]
    assert [rest for word, rest in final if word == "COPY"] == [
        f"--from=build {IMAGE_VENV} ./venv",
        "adapter ./adapter",
    ]
    assert [rest for word, rest in final if word in ("ENTRYPOINT", "CMD")] == [
        f'["{IMAGE_VENV}/bin/python", "-m", "adapter"]',
        '["serve"]',
    ]
    assert ("ENV", "BALLOT_LLAMA_LIB_DIR=/opt/llama.cpp/bin") in final
    assert ("EXPOSE", "8080") in final


def test_the_two_differ_in_their_base_and_in_what_must_be_in_it() -> None:
    cpu, cuda = (
        {line for line in (CONTAINER / name).read_text().splitlines() if not line.startswith("#")}
        for name in DOCKERFILES
    )
    assert {re.split(r"[=@\"]", line)[0] for line in cpu ^ cuda} == {
        "ARG BASE_IMAGE",
        "ARG BINDINGS",
        "LABEL org.opencontainers.image.title",
        "RUN --mount",
    }


# --- the steps


@dataclass(frozen=True)
class Image:
    """A folder for each of the image's: the build context, the environment, the libraries."""

    context: Path
    prefix: Path
    libraries: Path
    app: Path

    def run(
        self, command: str, *, folder: Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of a Dockerfile."""
        script = re.sub(r"^--mount=\S+ ", "", command).replace("/src/", f"{self.context}/")
        return subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=environment(
                PYTHON=sys.executable,
                PREFIX=str(self.prefix),
                LLAMA_LIB_DIR=str(self.libraries),
                BINDINGS=bindings(),
                PYTHONDONTWRITEBYTECODE="1",
                **variables,
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def self_test(self, dockerfile: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the last RUN of a Dockerfile."""
        return self.run(arguments(dockerfile, "RUN")[-1], folder=self.app, **variables)


def bindings() -> str:
    """Return the pinned bindings' source: as setup keeps it, else by its version."""
    kept = Cache.from_environ(os.environ).root / "downloads" / LLAMA.source.filename
    return str(kept) if kept.is_file() else f"llama-cpp-python=={LLAMA.source.version}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The CPU image, made by its Dockerfile's steps but for that of the system's packages."""
    root = tmp_path_factory.mktemp("image")
    image = Image(root / "src", root / "venv", root / "lib", root / "app")
    shutil.copytree(CONTAINER, image.context, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copytree(own_libraries(), image.libraries)
    shutil.copytree(image.context / "adapter", image.app / "adapter")
    steps = arguments("Dockerfile", "RUN")
    assert steps[0] == "bash install.sh tools"
    for step in steps[1:-1]:
        folder = image.app if step.endswith("sbom") else image.context
        ended = image.run(step, folder=folder, BASE_IMAGE=PUBLIC)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return image


def message(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the adapter's one error line's message."""
    found: str = json.loads(ended.stdout.splitlines()[-1])["message"]
    return found


def test_the_image_ends_with_a_decision_scored_over_the_libraries(image: Image) -> None:
    ended = image.self_test("Dockerfile")
    assert (ended.stderr, ended.returncode) == ("", 0)
    (loaded,) = map(json.loads, ended.stdout.splitlines())
    assert loaded["event"] == "model_loaded"
    assert loaded["reuse"] == "tail removal and snapshots"
    assert (loaded["file"], loaded["backends"]) == ("tiny.gguf", ["CPU"])


def test_nothing_that_builds_is_left(image: Image) -> None:
    (packages,) = (image.prefix / "lib").glob("python3*/site-packages")
    left = {path.name.partition("-")[0].lower() for path in packages.iterdir()}
    assert left.isdisjoint({"pip", "setuptools", "wheel", "cmake", "ninja", "scikit_build_core"})
    assert not list(packages.glob("llama_cpp/**/*.so*"))
    assert not list((image.prefix / "bin").glob("pip*"))


def test_the_image_has_the_packages_that_are_pinned(image: Image) -> None:
    shown = subprocess.run(
        [image.prefix / "bin/python", "-I", "-c", LIST_PACKAGES],
        check=True,
        capture_output=True,
        text=True,
    )
    found = {name.lower().replace("_", "-"): version for name, version in json.loads(shown.stdout)}
    lines = (CONTAINER / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert found == pinned


def test_the_list_of_what_is_in_the_image_is_cyclonedx_and_whole(image: Image) -> None:
    found = json.loads((image.app / "sbom.cdx.json").read_text())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(found)) is None
    components = {item["name"]: item for item in found["components"]}

    base = components[PUBLIC.partition("@")[0]]
    assert (base["version"], base["hashes"]) == (PUBLIC.partition("@")[2], [sha256("1f" * 32)])
    parts = {item["name"]: item["hashes"] for item in components["ballot-adapter"]["components"]}
    files = list((image.app / "adapter").glob("**/*.py"))
    assert parts == hashes(image.app, files)
    libraries = [path for path in image.libraries.glob("*.so*") if not path.is_symlink()]
    assert {name: components[name]["hashes"] for name in components if ".so" in name} == hashes(
        image.libraries, libraries
    )
    assert any(path.name.startswith("libllama.so") for path in libraries)

    packages = {
        name: item["version"]
        for name, item in components.items()
        if item.get("purl", "").startswith("pkg:pypi/")
    }
    lines = (CONTAINER / "requirements.txt").read_text().splitlines()
    assert packages == dict(line.split("==") for line in lines if "==" in line)
    for name in packages:
        assert components[name]["licenses"]
        (digest,) = components[name]["hashes"]
        assert re.fullmatch("[0-9a-f]{64}", digest["content"])
    assert components["llama-cpp-python"]["hashes"] == [sha256(LLAMA.source.sha256)]
    assert [*found["dependencies"][0]["dependsOn"]] == [
        item["bom-ref"] for item in found["components"]
    ]


RPM = """\
#!/bin/sh
[ "$1 $2" = "-qa --qf" ] && printf "libstdc++\\t0\\t11.4.1-2.amzn2023\\tx86_64\\tGPLv3+\\n"
"""


def test_the_list_has_the_packages_of_the_distribution(tmp_path: Path) -> None:
    (tmp_path / "rpm").write_text(RPM)
    (tmp_path / "rpm").chmod(0o755)
    written = subprocess.run(
        [sys.executable, CONTAINER / "sbom.py", "write"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PREFIX": str(tmp_path),
            "LLAMA_LIB_DIR": str(tmp_path),
            "APP": str(tmp_path),
            "BASE_IMAGE": PUBLIC,
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(written) is None
    package = json.loads(written)["components"][-1]
    assert package["purl"] == ("pkg:rpm/amzn/libstdc%2B%2B@11.4.1-2.amzn2023?arch=x86_64&epoch=0")
    assert (package["name"], package["version"]) == ("libstdc++", "11.4.1-2.amzn2023")
    assert package["licenses"] == [{"license": {"name": "GPLv3+"}}]


def test_a_base_without_a_digest_cannot_be_listed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, CONTAINER / "sbom.py", "write"],
        env={"PREFIX": "/", "LLAMA_LIB_DIR": "/", "APP": "/", "BASE_IMAGE": "llama-cpp:latest"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "sbom: BASE_IMAGE is 'llama-cpp:latest', not an image with its digest\n"
    )


def sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def hashes(folder: Path, files: list[Path]) -> dict[str, list[dict[str, str]]]:
    """Return the SHA-256 of each file, as the system's own command tells it."""
    told = subprocess.run(["sha256sum", *files], check=True, capture_output=True, text=True).stdout
    lines = [line.split("  ", 1) for line in told.splitlines()]
    return {str(Path(path).relative_to(folder)): [sha256(digest)] for digest, path in lines}


def test_the_entrypoint_serves(image: Image, tmp_path: Path) -> None:
    tiny_gguf.write_model(tmp_path / "tiny.gguf")
    (entrypoint,), (command,) = (
        arguments("Dockerfile", "ENTRYPOINT"),
        arguments("Dockerfile", "CMD"),
    )
    words = [*json.loads(entrypoint), *json.loads(command)]
    with AdapterProcess(
        command=[word.replace(IMAGE_VENV, str(image.prefix)) for word in words],
        folder=image.app,
        BALLOT_LLAMA_LIB_DIR=str(image.libraries),
        BALLOT_GGUF_PATH=str(tmp_path / "tiny.gguf"),
    ) as adapter:
        adapter.wait_ready()
        maps = Path(f"/proc/{adapter.process.pid}/maps").read_text()
        assert adapter.terminate() == 0
    assert f"{image.libraries}/libllama.so" in maps
    assert str(own_libraries()) not in maps


def test_bindings_of_another_build_fail_the_image(image: Image) -> None:
    ended = image.self_test("Dockerfile", PYTHONPATH=str(OLDER_BINDINGS))
    assert ended.returncode == 1
    assert message(ended) == (
        "ABI mismatch: the llama.cpp libraries are of another build than the installed "
        "llama-cpp-python (main_gpu reads 1, not 0; use_extra_bufts reads False, not True); "
        "install the bindings of the same build"
    )


def test_a_base_without_the_cuda_backend_fails_the_cuda_image(image: Image) -> None:
    ended = image.self_test("Dockerfile.cuda")
    assert ended.returncode == 1
    assert ended.stderr == (
        f"install: there is no libggml-cuda*.so in {image.libraries}: "
        "is the base image the right one?\n"
    )


def test_an_adapter_that_does_not_import_fails_the_image(image: Image, tmp_path: Path) -> None:
    shutil.copytree(image.app, tmp_path / "app")
    (tmp_path / "app/adapter/worker.py").write_text("raise ImportError('broken')\n")
    broken = Image(image.context, image.prefix, image.libraries, tmp_path / "app")
    assert broken.self_test("Dockerfile").returncode == 1


@pytest.mark.parametrize(
    ("step", "variables", "said"),
    [
        ("bindings", {"BINDINGS": ""}, "BINDINGS is not set; it must be a pip requirement"),
        ("", {}, "unknown step ''; the steps are: tools, requirements, bindings, sbom, selftest"),
        (
            "all",
            {},
            "unknown step 'all'; the steps are: tools, requirements, bindings, sbom, selftest",
        ),
        ("sbom", {}, "BASE_IMAGE is not set; it must be an image with its digest"),
    ],
)
def test_a_step_that_cannot_be(step: str, variables: dict[str, str], said: str) -> None:
    ended = subprocess.run(
        ["bash", CONTAINER / "install.sh", step],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (1, f"install: {said}\n")


def test_the_build_backend_is_the_one_that_setup_uses() -> None:
    lines = (CONTAINER / "requirements-build.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [*BUILD_BACKEND]


def test_the_tiny_model_is_a_whole_gguf_and_the_same_each_time(tmp_path: Path) -> None:
    paths = (tmp_path / "a.gguf", tmp_path / "b.gguf")
    for path in paths:
        tiny_gguf.write_model(path)
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    assert first == second
    header = read_header(paths[0])
    assert (header.architecture, header.quantization, header.layers) == ("llama", "F32", 2)


# --- the builds

AWS = """\
#!/bin/sh
echo "aws $*" >> "$FAKE/calls"
case "$1 $2" in
"ecr get-login-password") echo secret ;;
"ecr-public get-login-password") exit 255 ;;
"ecr describe-images")
    tag="${6#imageTag=}"
    if [ -f "$FAKE/denied" ]; then
        echo "An error occurred (AccessDeniedException) when calling DescribeImages: no" >&2
        exit 254
    elif ! [ -f "$FAKE/tags/$tag" ]; then
        echo "An error occurred (ImageNotFoundException) when calling DescribeImages: none" >&2
        exit 254
    fi
    cat "$FAKE/tags/$tag" ;;
"s3api head-object") [ -f "$FAKE/$6" ] || { echo "(403) Forbidden" >&2; exit 254; } ;;
"s3 cp")
    [ -f "$FAKE/full" ] && exit 1
    mkdir -p "$FAKE/sboms" && cp "$3" "$FAKE/${4#s3://bucket/}" ;;
esac
"""
DOCKER = """\
#!/bin/sh
echo "docker $*" >> "$FAKE/calls"
case "$1" in
login) [ -n "$(cat)" ] ;;
build | pull) ! [ -f "$FAKE/broken" ] ;;
push)
    [ -f "$FAKE/refused" ] && exit 1
    [ -f "$FAKE/overtaken" ] && cp "$FAKE/overtaken" "$FAKE/tags/${2##*:}" && exit 1
    echo "$DIGEST_OF_PUSHED" > "$FAKE/tags/${2##*:}" ;;
cp) echo "list of $2" > "$3" ;;
esac
"""
REGISTRY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
PUBLIC = f"public.ecr.aws/deep-learning-containers/llama-cpp@sha256:{'1f' * 32}"
PRIVATE = f"763104351884.dkr.ecr.us-west-2.amazonaws.com/llama-cpp@sha256:{'1f' * 32}"
VARIABLES = {
    "BASE_IMAGE": PUBLIC,
    "DOCKERFILE": "Dockerfile",
    "BINDINGS": "llama-cpp-python @ git+https://example.com/x@abc",
    "REPOSITORY_URI": f"{REGISTRY}/ballot/dev-cpu",
    "IMAGE_TAG": "0123abc",
    "ARTIFACT_BUCKET": "bucket",
}
WORK = {
    "buildspec.yml": [
        f"docker build -f Dockerfile --build-arg BASE_IMAGE={PUBLIC} "
        f"--build-arg BINDINGS={VARIABLES['BINDINGS']} "
        f"-t {VARIABLES['REPOSITORY_URI']}:0123abc .",
    ],
    "mirror.buildspec.yml": [
        f"docker pull {PUBLIC}",
        f"docker tag {PUBLIC} {VARIABLES['REPOSITORY_URI']}:0123abc",
    ],
}
PUSH = f"docker push {VARIABLES['REPOSITORY_URI']}:0123abc"


def listing(digest: str = DIGEST) -> list[str]:
    """Return what copies the list of what is in an image out of it."""
    reference = f"{VARIABLES['REPOSITORY_URI']}@{digest}"
    return [
        f"docker pull {reference}",
        f"docker create --name listed-0123abc {reference}",
        "docker cp listed-0123abc:/opt/ballot/sbom.cdx.json sbom.cdx.json",
    ]


@dataclass(frozen=True)
class Build:
    """A build as CodeBuild runs it: all commands in one shell, up to the first that fails."""

    spec: dict[str, Any]
    folder: Path

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        phases = self.spec["phases"]
        commands = [command for name in phases for command in phases[name].get("commands", [])]
        script = "\n".join(f"eval {shlex.quote(command)} || exit 1" for command in commands)
        return subprocess.run(
            ["bash", "-c", f"{script}\nenv"],
            cwd=self.folder / "work",
            env={
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "FAKE": str(self.folder),
                "DIGEST_OF_PUSHED": DIGEST,
                **self.spec["env"]["variables"],
                **VARIABLES,
                **variables,
            },
            capture_output=True,
            text=True,
        )

    def docker_calls(self) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith("docker ")]


@pytest.fixture(params=["buildspec.yml", "mirror.buildspec.yml"])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def build(name: str, tmp_path: Path) -> Build:
    for command, script in {"aws": AWS, "docker": DOCKER}.items():
        path = tmp_path / "bin" / command
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
    (tmp_path / "tags").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "calls").touch()
    return Build(yaml.safe_load((CONTAINER / name).read_text()), tmp_path)


def exported(ended: subprocess.CompletedProcess[str]) -> str | None:
    lines = [line for line in ended.stdout.splitlines() if line.startswith("IMAGE_DIGEST=")]
    return lines[-1].removeprefix("IMAGE_DIGEST=") if lines else None


def test_a_build_stops_at_its_first_failure_and_exports_the_digest(build: Build) -> None:
    assert build.spec["version"] == 0.2
    assert build.spec["env"]["exported-variables"] == ["IMAGE_DIGEST"]
    assert list(build.spec["phases"]) == ["pre_build", "build", "post_build"]
    for phase in ("pre_build", "build"):
        assert build.spec["phases"][phase]["on-failure"] == "ABORT"


def test_an_image_that_is_missing_is_made_and_pushed(build: Build, name: str) -> None:
    ended = build.run()
    assert ended.returncode == 0, ended.stderr
    assert exported(ended) == DIGEST
    assert build.docker_calls() == [
        f"docker login --username AWS --password-stdin {REGISTRY}",
        "docker login --username AWS --password-stdin public.ecr.aws",
        *WORK[name],
        PUSH,
        *(listing() if name == "buildspec.yml" else []),
    ]


def test_what_is_in_an_image_is_kept_under_its_digest(build: Build, name: str) -> None:
    assert build.run().returncode == 0
    kept = [str(path.relative_to(build.folder)) for path in build.folder.glob("sboms/*")]
    assert kept == ([SBOM] if name == "buildspec.yml" else [])


@pytest.mark.parametrize("name", ["buildspec.yml"])
def test_an_image_without_its_list_is_listed_by_the_next_build(build: Build) -> None:
    (build.folder / "full").touch()
    assert build.run().returncode == 1
    (build.folder / "full").unlink()
    (build.folder / "overtaken").write_text(f"{DIGEST}\n")  # its tag is taken: by itself
    (build.folder / "calls").write_text("")
    ended = build.run()
    assert (ended.returncode, exported(ended)) == (0, DIGEST)
    assert build.docker_calls()[-4:] == [PUSH, *listing()]
    assert (build.folder / SBOM).read_text().startswith("list of listed-0123abc:")


def test_an_image_that_is_there_is_not_made_again(build: Build) -> None:
    (build.folder / "tags/0123abc").write_text(f"{DIGEST}\n")
    (build.folder / "sboms").mkdir()
    (build.folder / SBOM).touch()
    ended = build.run()
    assert ended.returncode == 0, ended.stderr
    assert exported(ended) == DIGEST
    assert build.docker_calls() == []


def test_a_base_of_a_private_registry_is_logged_in_to(build: Build) -> None:
    assert build.run(BASE_IMAGE=PRIVATE).returncode == 0
    host = PRIVATE.partition("/")[0]
    assert f"docker login --username AWS --password-stdin {host}" in build.docker_calls()
    calls = (build.folder / "calls").read_text()
    assert "aws ecr get-login-password --region us-west-2" in calls


def test_another_build_may_have_been_faster(build: Build) -> None:
    other = f"sha256:{'cd' * 32}"
    (build.folder / "overtaken").write_text(f"{other}\n")
    ended = build.run()
    assert ended.returncode == 0
    assert exported(ended) == other


@pytest.mark.parametrize(
    ("fault", "last"),
    [("denied", None), ("broken", 0), ("refused", PUSH)],
)
def test_what_fails_ends_the_build(
    fault: str, last: str | int | None, build: Build, name: str
) -> None:
    (build.folder / fault).touch()
    ended = build.run()
    assert ended.returncode == 1
    assert exported(ended) is None
    calls = build.docker_calls()
    if last is None:
        assert calls == []
        assert "AccessDeniedException" in ended.stdout + ended.stderr
    else:
        assert calls[-1] == (last if isinstance(last, str) else WORK[name][last])


@pytest.mark.parametrize("variable", ["BASE_IMAGE", "REPOSITORY_URI", "IMAGE_TAG"])
def test_a_variable_that_is_missing_is_named(variable: str, build: Build) -> None:
    ended = build.run(**{variable: ""})
    assert ended.returncode != 0
    assert variable in ended.stderr
    assert build.docker_calls() == []
