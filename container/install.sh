#!/usr/bin/env bash
# The steps that make a decision image, for both Dockerfiles and for a test without Docker.
#
#   install.sh tools          the compilers that building the bindings takes (Amazon Linux only)
#   install.sh requirements   a Python environment with the adapter's pinned packages
#   install.sh bindings       llama.cpp's bindings into it, over libraries that are there already
#   install.sh sbom           a list of all that is in the image, to sbom.cdx.json where it is run
#   install.sh selftest       load and score a tiny model; run from the folder that holds adapter/
#
# Environment:
#   PYTHON          the interpreter to make the environment with (python3.12)
#   PREFIX          the environment (/opt/ballot/venv)
#   BINDINGS        a pip requirement: the llama-cpp-python that fits the libraries
#   LLAMA_LIB_DIR   llama.cpp's libraries (/opt/llama.cpp/bin)
#   BASE_IMAGE      the base image, by its digest, for the list
#   BACKENDS        the ggml backends that must be among them (cpu)
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHON="${PYTHON:-python3.12}"
PREFIX="${PREFIX:-/opt/ballot/venv}"
LLAMA_LIB_DIR="${LLAMA_LIB_DIR:-/opt/llama.cpp/bin}"
BACKENDS="${BACKENDS:-cpu}"
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT

fail() {
    echo "install: $1" >&2
    exit 1
}

pip_install() {
    "$PREFIX/bin/python" -m pip install --disable-pip-version-check --no-input "$@"
}

tools() {
    dnf install -y --setopt=install_weak_deps=False gcc gcc-c++ make cmake git
    dnf clean all
}

requirements() {
    "$PYTHON" -m venv "$PREFIX"
    # The bindings are not those of the tests but those of the base image's libraries.
    grep -v '^llama-cpp-python==' "$HERE/requirements.txt" >"$WORK/requirements.txt"
    pip_install --only-binary :all: --requirement "$WORK/requirements.txt" \
        --report "$PREFIX/requirements.json"
}

bindings() {
    [ -n "${BINDINGS:-}" ] || fail "BINDINGS is not set; it must be a pip requirement"
    pip_install --only-binary :all: --target "$WORK/backend" \
        --requirement "$HERE/requirements-build.txt"
    # llama.cpp's source is a submodule of the bindings, large and of no use here.
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=submodule.vendor/llama.cpp.update \
        GIT_CONFIG_VALUE_0=none
    PYTHONPATH="$WORK/backend" CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" \
        pip_install --no-deps --no-build-isolation --no-cache-dir "$BINDINGS" \
        --report "$WORK/bindings.json"
    "$PREFIX/bin/python" -m pip check --disable-pip-version-check
    "$PREFIX/bin/python" -m pip uninstall --yes --quiet pip setuptools
    "$PREFIX/bin/python" "$HERE/sbom.py" note "$PREFIX/requirements.json" \
        "$WORK/bindings.json" >"$PREFIX/artifacts.json"
    rm "$PREFIX/requirements.json"
}

sbom() {
    [ -n "${BASE_IMAGE:-}" ] || fail "BASE_IMAGE is not set; it must be an image with its digest"
    PREFIX="$PREFIX" LLAMA_LIB_DIR="$LLAMA_LIB_DIR" APP="$PWD" BASE_IMAGE="$BASE_IMAGE" \
        "$PREFIX/bin/python" "$HERE/sbom.py" write >"$WORK/sbom.json"
    cp "$WORK/sbom.json" sbom.cdx.json
}

selftest() {
    for backend in $BACKENDS; do
        compgen -G "$LLAMA_LIB_DIR/libggml-$backend*.so" >/dev/null ||
            fail "there is no libggml-$backend*.so in $LLAMA_LIB_DIR: is the base image the right one?"
    done
    "$PREFIX/bin/python" "$HERE/tiny_gguf.py" "$WORK/tiny.gguf"
    BALLOT_GGUF_PATH="$WORK/tiny.gguf" BALLOT_LLAMA_LIB_DIR="$LLAMA_LIB_DIR" \
        "$PREFIX/bin/python" -m adapter selftest
}

case "${1:-}" in
tools | requirements | bindings | sbom | selftest) "$1" ;;
*) fail "unknown step '${1:-}'; the steps are: tools, requirements, bindings, sbom, selftest" ;;
esac
