"""The worker's end: whatever ends it, what was given away of its model can still be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapter_process import PATIENCE, ROOT, environment
from tests.gguf_models import BYTES_TEMPLATE, write_tiny_model

# In a process of its own, which a model that is freed too early would crash.
SCRIPT = """
import sys
from concurrent.futures import Future
from pathlib import Path

from adapter.loading import Loading
from adapter.settings import Settings
from adapter.worker import SELF_TEST, Worker


class Ending:
    def __init__(self):
        self.model = Future()
        self.messages = []

    def loaded(self, loaded):
        self.model.set_result(loaded)

    def work(self, engine):
        if sys.argv[2] == "died":
            raise RuntimeError("a bug")

    def failed(self, message):
        self.messages.append(message)


settings = Settings(gguf_path=Path(sys.argv[1]), threads=1)
loading, service = Loading(settings), Ending()
worker = Worker(settings, loading)
worker.serve(service)
loaded = service.model.result(timeout=60)
worker.join(60)
assert bool(service.messages) == (sys.argv[2] == "died")
assert loading.model.handle, "the model was freed"
prompt = loaded.encoder.encode(SELF_TEST)
# Every byte of this model's text is a token of its own, behind three others; and so is a space.
tokens = prompt.token_ids[1:]
sys.stdout.buffer.write(bytes(32 if token == 259 else token - 3 for token in tokens))
"""


@pytest.mark.parametrize("end", ["done", "died"])
def test_prompts_can_be_encoded_when_the_worker_has_ended(tmp_path: Path, end: str) -> None:
    """Nobody waits then for a thread that is still tokenizing what no worker will score."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, chat_template=BYTES_TEMPLATE)

    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, path, end],
        cwd=ROOT / "container",
        env=environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(b"The parcel arrived.") == 1
