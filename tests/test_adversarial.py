"""Text that attacks the prompt, against what the adapter guarantees of every prompt.

What is judged are token ids, by llama.cpp itself: its attributes of tokens and its detokenizer,
against prompts that are written out here. `data/adversarial-states.json` has the attacks.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pytest

from adapter import native, strict_json, systemone
from adapter.decision import LAYOUTS, Decision, Json, Scoring
from adapter.llama import Library, Vocabulary
from adapter.prompt import PromptTemplate, plain_template, render_template
from adapter.scorer import ModelIdentity
from adapter.tokens import Encoded, Encoder
from adapter.wire import Limits, Terms
from tests.adapter_process import DEMO_MODEL, GEMMA_MODEL, LLAMA_FILES, ROOT
from tests.test_tokens import PHI3_TEMPLATE, QWEN35_TEMPLATE, SPM_TEMPLATE

# llama_token_attr and llama_vocab_type in llama.h.
CONTROL, USER_DEFINED = 8, 16
SENTENCE_PIECE = 1
QUESTION = "Which team should handle this?"
DESCRIPTIONS = ("Account access.", "Billing.", "Sales.", "Something else.")
GEMMA_CHAT = LLAMA_FILES / "templates" / "google-gemma-2-2b-it.jinja"
# No template that is here writes a user-defined token, as Qwen3.5's does with <think>.
GEMMA_MARKUP = PromptTemplate(
    "<bos><start_of_turn>user\nRule.\n[multimodal]",
    "[multimodal]<end_of_turn>\n<start_of_turn>model\n",
)
MODEL = ModelIdentity("m.gguf", "0" * 64, "llama", "F32", "F32", 1024, 1, 0, ("CPU",), "0.5.0")
TERMS = Terms(Limits(4, 26), Scoring(), MODEL, model_aliases=False)


def vocabulary(name: str) -> Path:
    return LLAMA_FILES / f"ggml-vocab-{name}.gguf"


# A vocabulary, and the source of a chat template, a template, or None for the model's own.
MODELS: dict[str, tuple[Path, str | PromptTemplate | None]] = {
    "smollm2": (DEMO_MODEL, None),
    "gemma-plain": (GEMMA_MODEL, plain_template()),
    "gemma-chat": (GEMMA_MODEL, GEMMA_CHAT.read_text()),
    "gemma-markup": (GEMMA_MODEL, GEMMA_MARKUP),
    "qwen35": (vocabulary("qwen35"), QWEN35_TEMPLATE.read_text()),
    "llama-spm": (vocabulary("llama-spm"), SPM_TEMPLATE),
    "phi-3": (vocabulary("phi-3"), PHI3_TEMPLATE),
}


class Oracle:
    """A vocabulary as llama.cpp tells it, and a template for it."""

    def __init__(self, library: Library, path: Path, template: str | PromptTemplate | None) -> None:
        self._api: Any = library.api
        params = self._api.llama_model_default_params()
        params.vocab_only = True
        self._model = self._api.llama_model_load_from_file(str(path).encode(), params)
        assert self._model
        self._vocab = self._api.llama_model_get_vocab(self._model)
        if template is None:
            template = self._api.llama_model_chat_template(self._model, None).decode()
        if isinstance(template, str):
            template = render_template(template, bos_token="<bos>", eos_token="")
        self.template = template
        self.vocabulary = Vocabulary(self._api, self._model)
        self.encoder = Encoder(self.vocabulary, template, context_tokens=1_000_000)
        self.before, self.after = map(self._markup, (template.before, template.after))
        self.around = self._around()
        self._lost = self._lost_bytes()

    def _around(self) -> tuple[bytes, bytes]:
        """Return what the template writes between its markup and the message, without spaces."""
        before, after = self.template.before, self.template.after
        if self.before:
            before = before.rpartition(self.text(self.before[-1:]).decode())[2]
        if self.after:
            after = after.partition(self.text(self.after[:1]).decode())[0]
        return before.strip().encode(), after.strip().encode()

    def _markup(self, text: str) -> list[int]:
        return [token for token in self.tokenize(text) if self._is_markup(token)]

    def _is_markup(self, token: int) -> bool:
        attributes = self._api.llama_vocab_get_attr(self._vocab, token)
        return bool(attributes & (CONTROL | USER_DEFINED) and self.text([token]).strip())

    def _lost_bytes(self) -> bytes:
        """The bytes that no token stands for: llama.cpp leaves them out of a prompt."""
        if self.is_sentence_piece:
            return b""
        pieces = set(self.vocabulary.pieces)
        return bytes(byte for byte in range(256) if bytes([byte]) not in pieces)

    @property
    def is_sentence_piece(self) -> bool:
        return bool(self._api.llama_vocab_type(self._vocab) == SENTENCE_PIECE)

    def tokenize(self, text: str) -> list[int]:
        """Tokenize text that a template may have written."""
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = self._api.llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, True)
        return list(ids[:count])

    def text(self, ids: list[int]) -> bytes:
        """Return what llama.cpp writes for `ids`."""
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        buffer = ctypes.create_string_buffer(64 * len(ids) + 64)
        size = self._api.llama_detokenize(
            self._vocab, tokens, len(ids), buffer, len(buffer), False, True
        )
        assert size >= 0
        return buffer.raw[:size]

    def kept(self, text: str) -> bytes:
        """Return what there are tokens for; SentencePiece's mark is the space it stands for."""
        marked = text.replace("\u2581", " ") if self.is_sentence_piece else text
        return marked.encode().translate(None, self._lost)

    def slots(self, options: int) -> tuple[int, ...]:
        """Return the last token of the prompt's end with each letter behind it."""
        after = self.template.after
        return tuple(self.tokenize(after + letter)[-1] for letter in ascii_uppercase[:options])

    def split(self, ids: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the control tokens and the template's markup, and all that stands in between."""
        known = {*self.before, *self.after}
        places = [
            place
            for place, token in enumerate(ids)
            if token in known or self._api.llama_vocab_get_attr(self._vocab, token) & CONTROL
        ]
        inner = len(places) - len(self.after)
        start = places[inner - 1] + 1 if inner else 0
        end = places[inner] if self.after else len(ids)
        return [ids[place] for place in places], list(ids[start:end])

    def expected_markup(self) -> list[int]:
        """Return the control tokens and markup of any prompt."""
        bos = self._api.llama_vocab_bos(self._vocab)
        adds_bos = self._api.llama_vocab_get_add_bos(self._vocab) and self.before[:1] != [bos]
        return [*([bos] if adds_bos else []), *self.before, *self.after]

    def close(self) -> None:
        self._api.llama_model_free(self._model)


@pytest.fixture(scope="module", params=MODELS)
def oracle(request: pytest.FixtureRequest, library: Library) -> Iterator[Oracle]:
    path, template = MODELS[request.param]
    oracle = Oracle(library, path, template)
    yield oracle
    oracle.close()


# --- the attacks


@dataclass(frozen=True)
class Attack:
    """What is asked, in the words of an attacker where he may write."""

    state: Json
    question: str = QUESTION
    descriptions: tuple[str, ...] = DESCRIPTIONS

    @property
    def name(self) -> str:
        """An id, which no model ever reads."""
        return f"i{self.state if isinstance(self.state, str) else self.question}"[:250]

    def requests(self) -> list[bytes]:
        """Return bodies that ask it: native, and as a choice and a score of System One."""
        options = [
            {"id": f"{self.name}{index}", "description": description}
            for index, description in enumerate(self.descriptions)
        ]
        asked = {"id": self.name, "state": self.state, "question": self.question}
        criteria = {option["id"]: option["description"] for option in options}
        questions = {
            self.name: {"type": "choice", "instructions": self.question, "criteria": criteria},
            "s": {
                "type": "score",
                "instructions": self.question,
                "criteria": list(self.descriptions),
            },
        }
        bodies = (
            {"decision": {**asked, "options": options}},
            {"state": self.state, "questions": questions},
        )
        return [json.dumps(body).encode() for body in bodies]

    def message(self, layout: str, *, is_reversed: bool) -> str:
        """Return the user message that it must become, as docs/prompt.md has it."""
        descriptions = self.descriptions[::-1] if is_reversed else self.descriptions
        options = [
            {"letter": letter, "description": description}
            for letter, description in zip(ascii_uppercase, descriptions, strict=False)
        ]
        evidence, rest = {"evidence": self.state}, {"criterion": self.question, "options": options}
        parts = {**evidence, **rest} if layout == "evidence_first" else {**rest, **evidence}
        return json.dumps(parts, ensure_ascii=False)


def read_attacks() -> dict[str, list[Attack]]:
    """Return each attack where its file has it, and one that stands everywhere."""
    path = ROOT / "tests/data/adversarial-states.json"
    return {item["id"]: attacks_of(item) for item in json.loads(path.read_text("utf-8"))}


def attacks_of(item: dict[str, Any]) -> list[Attack]:
    state = item["repeat"] * item["times"] if "repeat" in item else item["state"]
    found = Attack(
        state,
        item.get("question", QUESTION),
        tuple(item.get("descriptions", DESCRIPTIONS)),
    )
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
    everywhere = Attack(
        {text: [text], "k": text}, f"{text}?", tuple(f"{text} {number}" for number in range(3))
    )
    return [found, everywhere]


ATTACKS = read_attacks()


def decisions(body: bytes) -> tuple[Decision, ...]:
    parsed = strict_json.parse(body)
    assert isinstance(parsed, dict)
    if "questions" in parsed:
        return systemone.parse_request(parsed, TERMS).decisions
    return native.parse_request(parsed, TERMS.limits).decisions


@pytest.mark.parametrize("name", ATTACKS)
def test_no_text_changes_the_prompt_around_it(oracle: Oracle, name: str) -> None:
    for attack in ATTACKS[name]:
        for body in attack.requests():
            for decision in decisions(body):
                check_prompts(oracle, attack, decision)


def check_prompts(oracle: Oracle, attack: Attack, decision: Decision) -> None:
    assert [option.description for option in decision.options] == list(attack.descriptions)
    for layout in LAYOUTS:
        orders = oracle.encoder.encode_orders(decision, Scoring(layout=layout, orders=2))
        for encoded, is_reversed in zip(orders, (False, True), strict=True):
            check_prompt(oracle, encoded, attack.message(layout, is_reversed=is_reversed))
            assert encoded.slots == oracle.slots(len(attack.descriptions))


def check_prompt(oracle: Oracle, encoded: Encoded, message: str) -> None:
    markup, middle = oracle.split(encoded.token_ids)
    assert markup == oracle.expected_markup()
    written = oracle.text(middle)
    start, end = written.index(b"{"), written.rindex(b"}") + 1
    assert written[start:end] == oracle.kept(message)
    assert (written[:start].strip(), written[end:].strip()) == oracle.around
    if oracle.kept(message) == message.encode():
        # A decoder of JSON reads the very state, question and options.
        assert repr(json.loads(written[start:end])) == repr(json.loads(message))
    whole = oracle.template.before + message + oracle.template.after
    assert encoded.prompt_sha256 == hashlib.sha256(whole.encode()).hexdigest()


def test_the_oracle_sees_what_it_is_for(oracle: Oracle) -> None:
    """It tells the attack in a prompt that is tokenized all at once, markup and all."""
    attributes = enumerate(oracle.vocabulary.attributes)
    control = [token for token, attribute in attributes if attribute & CONTROL][:40]
    attack = Attack(" ".join(oracle.text([token]).decode() for token in control))
    message = attack.message(LAYOUTS[0], is_reversed=False)
    ids = oracle.tokenize(oracle.template.before + message + oracle.template.after)
    assert len(oracle.split(tuple(ids))[0]) > len(oracle.expected_markup())
    for body in attack.requests():
        check_prompts(oracle, attack, decisions(body)[0])
