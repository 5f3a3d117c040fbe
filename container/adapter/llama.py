"""The typed door to llama.cpp: with `bindings` and `context`, all that touches llama-cpp-python.

Every native precondition is checked here in Python, because llama.cpp answers some violations by
aborting the process. Objects own native memory and are closed explicitly.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from adapter.bindings import import_bindings
from adapter.errors import StartupError

# What llama.cpp's default parameters are. Bindings and library disagree about the layout of these
# structures exactly when they come from different builds, and then some of these read as absurd.
KNOWN_DEFAULTS: dict[str, dict[str, int | float | bool]] = {
    "llama_model_default_params": {
        "split_mode": 1,
        "main_gpu": 0,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
        "no_host": False,
    },
    "llama_context_default_params": {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "rope_freq_base": 0.0,
        "rope_freq_scale": 0.0,
        "yarn_ext_factor": -1.0,
        "yarn_orig_ctx": 0,
        "type_k": 1,
        "type_v": 1,
        "embeddings": False,
        "offload_kqv": True,
        "op_offload": True,
        "swa_full": True,
        "kv_unified": False,
    },
}

# ggml_backend_dev_type in ggml-backend.h.
_DEVICE_KINDS = ("cpu", "gpu", "integrated-gpu", "accelerator", "meta")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_REPACKED = re.compile(r"repack tensor \S+ with (\w+?)_\d+x\d+")
_TENSORS_OF_TYPE = re.compile(r"- type\s+(\w+):\s+(\d+) tensors")
_WEIGHTS = re.compile(r"CPU_(Mapped|REPACK) model buffer size = +([\d.]+) MiB")
_NO_MEMORY = re.compile(r"\bmemory\b|unable to allocate|std::bad_alloc")
_LOG_LEVEL_DEBUG, _LOG_LEVEL_ERROR = 1, 4
_PIECE_BYTES = 64


ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Device:
    """A device that ggml can compute on, such as `CPU` or `CUDA0`."""

    name: str
    kind: str


class Library:
    """llama.cpp, loaded, checked against its bindings, with its backends registered."""

    def __init__(self, lib_dir: Path | None) -> None:
        """Load the libraries in `lib_dir`, or llama-cpp-python's own.

        Raises:
            StartupError: they do not load, or were not built for these bindings.
        """
        if lib_dir is not None:
            if not lib_dir.is_dir():
                raise StartupError(f"BALLOT_LLAMA_LIB_DIR names no folder: {lib_dir}")
            os.environ["LLAMA_CPP_LIB_PATH"] = str(lib_dir)
        self.api = _import_bindings(lib_dir)
        self.lines: deque[str] = deque(maxlen=200)
        self.errors: deque[str] = deque(maxlen=20)
        self.repacked: set[str] = set()
        # The native side keeps only a pointer: the callback must live as long as the library.
        self._log_callback = self.api.llama_log_callback(self._log)
        self.api.llama_log_set(self._log_callback, None)
        check_abi(self.api)
        self._ggml = _load_ggml(lib_dir or Path(str(self.api.__file__)).parent / "lib")
        if lib_dir is not None:
            self._ggml.ggml_backend_load_all_from_path(os.fsencode(lib_dir))
        self.api.llama_backend_init()
        self.devices = self._list_devices()
        if not any(device.kind == "cpu" for device in self.devices):
            raise StartupError(
                "llama.cpp has no CPU backend; point BALLOT_LLAMA_LIB_DIR at the folder that "
                "holds libggml-cpu*.so"
            )

    @property
    def version(self) -> str:
        """llama.cpp's version and commit, or the bindings' version where it cannot tell."""
        try:
            return str(self.api.llama_version().decode())
        except AttributeError:
            return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"

    def _list_devices(self) -> tuple[Device, ...]:
        devices = []
        for index in range(self._ggml.ggml_backend_dev_count()):
            handle = self._ggml.ggml_backend_dev_get(index)
            kind = self._ggml.ggml_backend_dev_type(handle)
            name = self._ggml.ggml_backend_dev_name(handle).decode()
            devices.append(Device(name, _DEVICE_KINDS[kind]))
        return tuple(devices)

    def _log(self, level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if level == _LOG_LEVEL_DEBUG:
            # A thousand lines a model, of which only these say what nothing else does.
            if match := _REPACKED.search(line):
                self.repacked.add(match[1])
        elif line and line != ".":
            self.lines.append(line)
            if level == _LOG_LEVEL_ERROR:
                self.errors.append(line)

    def last_error(self) -> str:
        """Return what llama.cpp last said was wrong: its first error line since it was cleared."""
        return self.errors[0] if self.errors else "no reason given"


def _import_bindings(lib_dir: Path | None) -> Any:
    where = lib_dir or "llama-cpp-python's own folder"
    try:
        return import_bindings()
    except FileNotFoundError as error:
        raise StartupError(
            f"there is no libllama in {where}; point BALLOT_LLAMA_LIB_DIR at the folder that holds "
            "it and libggml*, or leave it unset to use llama-cpp-python's own"
        ) from error
    except (RuntimeError, OSError, AttributeError) as error:
        raise StartupError(
            f"ABI mismatch: the llama.cpp libraries in {where} do not fit the installed "
            f"llama-cpp-python ({error}); install the bindings of the same llama.cpp build"
        ) from error
    except ImportError as error:
        raise StartupError(f"llama-cpp-python does not import: {error}") from error


def check_abi(api: ModuleType | Any) -> None:
    """Compare default parameters, read through the bindings, with their known values.

    Fields that these bindings lack are left out: field sets differ between versions.

    Raises:
        StartupError: a value differs, so bindings and library are of different builds.
    """
    wrong = []
    for function, expected in KNOWN_DEFAULTS.items():
        params = getattr(api, function)()
        names = {item[0] for item in params._fields_}
        for name, value in expected.items():
            if name in names and getattr(params, name) != value:
                wrong.append(f"{name} reads {getattr(params, name)}, not {value}")
    if wrong:
        raise StartupError(
            "ABI mismatch: the llama.cpp libraries are of another build than the installed "
            f"llama-cpp-python ({'; '.join(wrong[:4])}); install the bindings of the same build"
        )


def _load_ggml(lib_dir: Path) -> ctypes.CDLL:
    name = "libggml.dylib" if (lib_dir / "libggml.dylib").exists() else "libggml.so"
    try:
        ggml = ctypes.CDLL(str(lib_dir / name))
    except OSError as error:
        raise StartupError(f"{name} does not load from {lib_dir}: {error}") from error
    ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_load_all_from_path.restype = None
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_type.restype = ctypes.c_int
    ggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    return ggml


def check_gpu_devices(devices: tuple[Device, ...], gpu_layers: int) -> None:
    """Refuse GPU layers where there is no GPU.

    Raises:
        StartupError: layers are to be offloaded and ggml sees no GPU.
    """
    if gpu_layers != 0 and not any("gpu" in device.kind for device in devices):
        seen = ", ".join(device.name for device in devices)
        raise StartupError(
            f"BALLOT_GPU_LAYERS is {gpu_layers} but llama.cpp sees no GPU (devices: {seen}); set "
            "it to 0, or run the CUDA image on a GPU instance"
        )


def check_offload(log_lines: list[str], gpu_layers: int) -> None:
    """Check in llama.cpp's own words that the layers asked for were really offloaded.

    Raises:
        StartupError: fewer were, or it does not say.
    """
    if gpu_layers == 0:
        return
    matches = [match for line in log_lines if (match := _OFFLOADED.search(line))]
    if not matches:
        raise StartupError("llama.cpp does not say how many layers it offloaded to the GPU")
    offloaded, total = (int(number) for number in matches[-1].groups())
    wanted = total if gpu_layers < 0 else min(gpu_layers, total)
    if offloaded < wanted:
        raise StartupError(
            f"llama.cpp offloaded {offloaded} of {total} layers, not the {wanted} that "
            "BALLOT_GPU_LAYERS asks for"
        )


def mapped_bytes(log_lines: list[str]) -> int:
    """Return how many bytes the CPU reads out of the model's mapped file, by llama.cpp's load log.

    Of weights that were repacked for it, it reads the copy.
    """
    found = [match for line in log_lines if (match := _WEIGHTS.search(line))]
    sizes = [float(match[2]) * (1 if match[1] == "Mapped" else -1) for match in found]
    return max(0, int(sum(sizes) * (1 << 20)))


def dominant_type(log_lines: list[str]) -> str:
    """Return the type that most tensors have, such as `q4_K`, out of llama.cpp's load log.

    Norms and biases are `f32` in every model: that counts only where there is nothing else.
    """
    found = [match for line in log_lines if (match := _TENSORS_OF_TYPE.search(line))]
    counts = {match[1]: int(match[2]) for match in found}
    matrices = {name: count for name, count in counts.items() if name != "f32"} or counts
    return max(matrices, key=matrices.__getitem__, default="unknown")


def has_fast_kernel(tensor_type: str, *, repacked: set[str], system_info: str) -> bool:
    """Whether matrices of `tensor_type` were repacked for this CPU, or have tiled kernels.

    What was repacked says llama.cpp's load log; which types its tiled kernels take, its
    `llamafile/sgemm.cpp`. Types that nothing is known of count as fast: no warning then.
    """
    if tensor_type in ("unknown", *repacked):
        return True
    tiled = {"f32", "f16", "bf16", "q8_0", "q4_0"}
    if "AVX" in system_info:
        tiled |= {"q5_0", "iq4_nl"}
    return "LLAMAFILE = 1" in system_info and tensor_type in tiled


def _cannot_load(path: Path, reason: str) -> StartupError:
    advice = "download or convert the GGUF again, or use a newer llama.cpp"
    if _NO_MEMORY.search(reason):
        advice = "use a smaller quantization or an instance with more memory"
    return StartupError(f"llama.cpp cannot load {path}: {reason}; {advice}")


class Model:
    """A loaded GGUF."""

    def __init__(self, library: Library, path: Path, *, gpu_layers: int) -> None:
        """Load `path`, offloading `gpu_layers` of it (-1: all).

        Raises:
            StartupError: the file does not load, cannot be scored, or the GPU is not what was
                asked for.
        """
        check_gpu_devices(library.devices, gpu_layers)
        self.library = library
        self._api = library.api
        library.lines.clear()
        library.errors.clear()
        library.repacked.clear()
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        self.handle = self._api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise _cannot_load(path, library.last_error())
        try:
            check_offload(list(library.lines), gpu_layers)
            self.mapped_bytes = mapped_bytes(list(library.lines))
            self.tensor_type = dominant_type(list(library.lines))
            if self._api.llama_model_has_encoder(self.handle):
                raise StartupError(f"{path} is an encoder model; Ballot scores decoder models")
            self.vocabulary = Vocabulary(self._api, self.handle)
        except StartupError:
            self.close()
            raise

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers keep a running state, which cannot be cut back to a position."""
        return bool(
            self._api.llama_model_is_recurrent(self.handle)
            or self._api.llama_model_is_hybrid(self.handle)
        )

    @property
    def window_tokens(self) -> int:
        """How many of the last tokens some layers see; 0 where all layers see all."""
        return int(self._api.llama_model_n_swa(self.handle))

    @property
    def most_bytes_per_token(self) -> int:
        """More than a context can take for each of its tokens: about four times what most do."""
        layers = self._api.llama_model_n_layer(self.handle)
        # Keys and values of 16 bits, and a row of the mask over one decode.
        return int(16 * layers * self._api.llama_model_n_embd(self.handle)) + 8192

    @property
    def is_fast_on_cpu(self) -> bool:
        """Whether this CPU has a fast kernel for matrices of `tensor_type`."""
        features = self._api.llama_print_system_info().decode("utf-8", "replace")
        return has_fast_kernel(
            self.tensor_type, repacked=self.library.repacked, system_info=features
        )

    @property
    def quantization(self) -> str:
        """The GGUF's own file type, such as `Q4_K - Medium`, in llama.cpp's words."""
        ftype = self._api.llama_model_ftype(self.handle)
        name = self._api.llama_ftype_name(ftype)
        return str(name.decode()) if name else f"file type {ftype}"

    @property
    def trained_context_tokens(self) -> int:
        """The context length that the model was trained for, in tokens."""
        return int(self._api.llama_model_n_ctx_train(self.handle))

    @property
    def chat_template(self) -> str | None:
        """The GGUF's default chat template, or None."""
        template = self._api.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8") if template else None

    def metadata(self, key: str) -> str | None:
        """Return the GGUF metadata value of `key` as text, or None."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._api.llama_model_meta_val_str(self.handle, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    def close(self) -> None:
        """Free the model. Contexts on it must be closed first."""
        if self.handle:
            self._api.llama_model_free(self.handle)
            self.handle = None


class Table(Generic[ValueT]):
    """A value for each token, read out of the native vocabulary when it is first asked for.

    Vocabularies have up to 262,000 tokens: to read them all takes as long as many a start-up.
    """

    def __init__(self, size: int, read: Callable[[int], ValueT]) -> None:
        self._values: list[ValueT | None] = [None] * size
        self._read = read

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, token: int) -> ValueT:
        value = self._values[token]
        if value is None:
            value = self._values[token] = self._read(token)
        return value

    def __iter__(self) -> Iterator[ValueT]:
        # What is read in passing is not kept: all of it would be tens of megabytes.
        return map(self._read, range(len(self)))


class Vocabulary:
    """A model's tokens. Reading it is safe from any thread while the model is loaded."""

    # llama_token_attr in llama.h.
    UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 2, 4, 8, 16, 32
    LSTRIP, RSTRIP = 128, 256

    def __init__(self, api: Any, model: Any) -> None:
        """Wrap the vocabulary of `model`: each token's attributes, and its bytes."""
        self._api = api
        self._vocab = api.llama_model_get_vocab(model)
        self.size = int(api.llama_vocab_n_tokens(self._vocab))
        if self.size == 0:
            raise StartupError("the GGUF holds no vocabulary")
        self.attributes = Table(self.size, self._read_attributes)
        self.pieces = Table(self.size, self._read_piece)

    def _read_attributes(self, token: int) -> int:
        return int(self._api.llama_vocab_get_attr(self._vocab, token))

    def _read_piece(self, token: int) -> bytes:
        size = _PIECE_BYTES
        while True:
            buffer: Any = ctypes.create_string_buffer(size)
            length = self._api.llama_token_to_piece(self._vocab, token, buffer, size, 0, True)
            if length >= 0:
                return bytes(buffer[:length])
            # It says, negated, how many bytes the piece has.
            size = -length

    @property
    def bos(self) -> int | None:
        """The token that starts a text, or None."""
        token = int(self._api.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    @property
    def eos(self) -> int | None:
        """The token that ends a text, or None."""
        token = int(self._api.llama_vocab_eos(self._vocab))
        return token if token >= 0 else None

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt of this vocabulary starts with `bos`."""
        return bool(self._api.llama_vocab_get_add_bos(self._vocab))

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the token ids of `text`, with no BOS or EOS added.

        Control tokens written out in `text` become those tokens only when `parse_special`.
        """
        data = text.encode("utf-8")
        size = len(data) + 16
        while True:
            tokens = (ctypes.c_int32 * size)()
            count = self._api.llama_tokenize(
                self._vocab, data, len(data), tokens, size, False, parse_special
            )
            if count >= 0:
                return list(tokens[:count])
            # It says, negated, how many tokens it would have written.
            size = -count
