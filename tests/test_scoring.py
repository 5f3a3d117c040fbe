"""Scores over HTTP, against llama-cpp-python's own API and a full softmax done elsewhere."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from llama_cpp import Llama

from adapter.errors import ScoringError
from adapter.scorer import read_logits
from tests.adapter_process import DEMO_MODEL

THREADS = 1


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    """llama-cpp-python's high-level API: another way to the same weights."""
    model = Llama(
        str(DEMO_MODEL),
        n_ctx=4096,
        n_batch=512,
        n_threads=THREADS,
        flash_attn=True,
        verbose=False,
    )
    yield model
    model.close()


def last_logits(llama: Llama, segments: list[list[int]]) -> npt.NDArray[np.float64]:
    """Return the logits after the last token, decoding one segment after another."""
    llama.reset()
    for segment in segments:
        llama.eval(segment)
    pointer = llama._ctx.get_logits()
    return np.ctypeslib.as_array(pointer, shape=(llama.n_vocab(),)).astype(np.float64)


def whole_prompt(llama: Llama, decision: dict[str, Any]) -> list[int]:
    """Render and tokenize the reference prompt with llama-cpp-python alone."""
    import json

    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    content = json.dumps(
        {
            "evidence": decision["state"],
            "criterion": decision["question"],
            "options": [
                {"letter": letter, "description": option["description"]}
                for letter, option in zip(letters, decision["options"], strict=False)
            ],
        },
        ensure_ascii=False,
    )
    system = (
        "Apply the supplied criterion to the supplied evidence. Choose exactly one listed option. "
        "Respond with only its uppercase letter, with no explanation or reasoning."
    )
    formatter = Jinja2ChatFormatter(
        template=llama.metadata["tokenizer.chat_template"], eos_token="", bos_token=""
    )
    prompt = formatter(
        messages=[{"role": "system", "content": system}, {"role": "user", "content": content}]
    ).prompt
    ids: list[int] = llama.tokenize(prompt.encode(), add_bos=False, special=True)
    return ids


def score(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/invocations", json=request)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def cuts(result: dict[str, Any], ids: list[int], head: int) -> list[list[int]]:
    """Split `ids` where the documentation says, given that the state is shorter than 64 tokens."""
    assert result["input_tokens"] == len(ids)
    return [ids[:head], ids[head:]]


def test_option_logits_equal_llama_cpp_pythons(
    client: httpx.Client, llama: Llama, support_route: dict[str, Any]
) -> None:
    result = score(client, support_route)["result"]
    ids = whole_prompt(llama, support_route["decision"])
    # The head: everything up to the evidence, and so what a first request finds in memory.
    logits = last_logits(llama, cuts(result, ids, result["cached_tokens"]))

    slots = [llama.tokenize(letter, add_bos=False)[0] for letter in (b"A", b"B", b"C")]
    assert result["answer_token_ids"] == slots
    assert result["option_logits"] == pytest.approx(logits[slots], abs=1e-3)


def test_probabilities_and_mass_against_a_full_softmax(
    client: httpx.Client, llama: Llama, support_route: dict[str, Any]
) -> None:
    result = score(client, support_route)["result"]
    ids = whole_prompt(llama, support_route["decision"])
    logits = last_logits(llama, cuts(result, ids, result["cached_tokens"]))
    allowed = [math.exp(logit) for logit in result["option_logits"]]
    everything = math.fsum(math.exp(logit) for logit in logits)

    assert result["probabilities"] == pytest.approx([part / sum(allowed) for part in allowed])
    assert sum(result["probabilities"]) == pytest.approx(1, abs=1e-12)
    mass = math.fsum(math.exp(logits[slot]) for slot in result["answer_token_ids"]) / everything
    assert result["allowed_token_mass"] == pytest.approx(mass, rel=2e-3)


def test_result_names_what_answered(client: httpx.Client, support_route: dict[str, Any]) -> None:
    result = score(client, support_route)["result"]

    assert result["id"] == "support-route"
    assert result["option_ids"] == ["account_access", "billing", "sales"]
    assert result["prompt_version"] == "direct-options-v1"
    assert result["calibration"] is None
    assert result["readout"] == (
        "quantized last-position logits restricted to declared answer slots; no generated tokens"
    )
    model = result["model"]
    assert model["sha256"] == hashlib.sha256(DEMO_MODEL.read_bytes()).hexdigest()
    assert model["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (model["architecture"], model["quantization"]) == ("llama", "Q4_1")
    assert (model["context_tokens"], model["gpu_layers"]) == (4096, 0)
    assert model["backends"] == ["CPU"]


def test_prompt_hash_is_of_the_models_own_rendering(
    client: httpx.Client, support_route: dict[str, Any]
) -> None:
    result = score(client, support_route)["result"]
    prompt = (
        "<|im_start|>system\nApply the supplied criterion to the supplied evidence. Choose exactly "
        "one listed option. Respond with only its uppercase letter, with no explanation or "
        "reasoning.<|im_end|>\n<|im_start|>user\n"
        '{"evidence": "Customer asks to reset a forgotten password and says the reset email never '
        'arrived.", "criterion": "Which queue should handle this request?", "options": [{"letter": '
        '"A", "description": "Account access and authentication support."}, {"letter": "B", '
        '"description": "Billing and payment support."}, {"letter": "C", "description": '
        '"Sales and product evaluation."}]}<|im_end|>\n<|im_start|>assistant\n'
    )

    assert result["prompt_sha256"] == hashlib.sha256(prompt.encode()).hexdigest()


def test_shared_state_is_decoded_once(
    client: httpx.Client, llama: Llama, shared_state: dict[str, Any]
) -> None:
    for decision in shared_state["decisions"]:
        decision["state"]["asked_by"] = "this test, so that the state is new to the cache"
    first, second = score(client, shared_state)["results"]
    ids = [whole_prompt(llama, decision) for decision in shared_state["decisions"]]
    shared = next(at for at, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])

    assert [result["input_tokens"] for result in (first, second)] == [len(item) for item in ids]
    # The questions start alike: the cut is behind the state, a few tokens before they part.
    assert shared - 8 <= second["cached_tokens"] <= shared
    assert first["cached_tokens"] < second["cached_tokens"]


def test_decisions_of_one_request_get_the_bits_that_they_get_alone(
    client: httpx.Client, shared_state: dict[str, Any], support_route: dict[str, Any]
) -> None:
    together = score(client, shared_state)["results"]
    for decision, result in zip(shared_state["decisions"], together, strict=True):
        score(client, support_route)  # leaves another prompt in memory
        alone = score(client, {"decision": decision})["result"]
        assert bits(alone) == bits(result)


def bits(result: dict[str, Any]) -> tuple[list[float], list[float], float]:
    """What must not move: JSON floats carry every bit of a double."""
    return result["option_logits"], result["probabilities"], result["allowed_token_mass"]


def test_unequal_states_are_grouped_and_answered_in_request_order(
    client: httpx.Client, support_route: dict[str, Any]
) -> None:
    states = ["new to the cache " + "word " * 100, "new to the cache, too " + "other " * 100] * 2
    decisions = [
        {**copy.deepcopy(support_route["decision"]), "id": f"d{index}", "state": state}
        for index, state in enumerate(states)
    ]
    results = score(client, {"decisions": decisions})["results"]

    assert [result["id"] for result in results] == ["d0", "d1", "d2", "d3"]
    # Each state was decoded for one of its two decisions only.
    assert results[2]["cached_tokens"] >= results[0]["cached_tokens"] + 100
    assert results[3]["cached_tokens"] >= results[1]["cached_tokens"] + 100
    assert bits(results[0]) == bits(results[2])
    assert bits(results[1]) == bits(results[3])


def test_255_options_are_scored(client: httpx.Client, support_route: dict[str, Any]) -> None:
    decision = support_route["decision"]
    decision["options"] = [{"id": f"o{i}", "description": f"N{i}"} for i in range(255)]
    result = score(client, support_route)["result"]

    assert len(set(result["answer_token_ids"])) == 255
    assert sum(result["probabilities"]) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    logits = np.zeros(100, dtype=np.float32)
    logits[7] = bad

    with pytest.raises(ScoringError, match="not finite"):
        read_logits(logits, (1, 2))


@given(
    logits=hnp.arrays(np.float32, st.integers(10, 300), elements=st.floats(-1e4, 1e4, width=32)),
    slots=st.lists(st.integers(0, 9), min_size=2, max_size=10, unique=True),
)
def test_readout_is_a_softmax_whatever_the_scale(
    logits: npt.NDArray[np.float32], slots: list[int]
) -> None:
    readout = read_logits(logits, tuple(slots))
    whole = logits.astype(np.longdouble)
    weights = np.exp(whole - whole.max())
    allowed = np.exp(whole[slots] - whole[slots].max())

    assert list(readout.option_logits) == logits[slots].astype(float).tolist()
    assert np.allclose(readout.probabilities, (allowed / allowed.sum()).astype(float), atol=1e-12)
    assert math.isclose(
        readout.allowed_token_mass,
        float(weights[slots].sum() / weights.sum()),
        rel_tol=1e-9,
        abs_tol=1e-300,
    )
