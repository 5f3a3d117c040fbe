"""A decision as text: the reference prompt, or its other layout, in any model's chat template.

A system message gives the rule; the user message is one JSON object with the evidence, the
criterion and the lettered options, or with the evidence last. The template is rendered once, at
start-up, around a stand-in for that object; a request's prompt is then text before, the object,
text after.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from adapter.decision import LAYOUTS, Decision
from adapter.errors import StartupError

PROMPT_VERSIONS = {
    "evidence_first": "direct-options-v1",
    "criterion_first": "criterion-first-v1",
}
SYSTEM_TEXT = (
    "Apply the supplied criterion to the supplied evidence. Choose exactly one listed option. "
    "Respond with only its uppercase letter, with no explanation or reasoning."
)

# Two stand-ins for the user message, alike in nothing but their outer braces, which every real
# message has too: a template that treats them differently would treat prompts differently.
_STAND_INS = (
    '{"evidence": "first", "criterion": "a < b & c"}',
    '{"other":\n [1, 2, "\\u00e9 </s>"]}',
)


@dataclass(frozen=True)
class PromptTemplate:
    """The text that a chat template puts before and after the user message."""

    before: str
    after: str


@dataclass(frozen=True)
class Prompt:
    """One decision as text: `before + content + after`, with the places where it may be cut.

    `head_end` and `prefix_end` are offsets into `content`, in characters. Up to `head_end` the
    content is the same for every decision of a layout; up to `prefix_end` it depends on what the
    layout puts first alone: the state, or the question and the options.
    """

    before: str
    content: str
    after: str
    head_end: int
    prefix_end: int
    version: str

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.before + self.content + self.after

    @property
    def sha256(self) -> str:
        """SHA-256 of the whole prompt's UTF-8, in hex."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def write_prompt(
    decision: Decision, template: PromptTemplate, labels: tuple[str, ...], layout: str = LAYOUTS[0]
) -> Prompt:
    """Write `decision` as text, its options under the first of `labels`."""
    options = [
        {"letter": label, "description": option.description}
        for label, option in zip(labels, decision.options, strict=False)
    ]
    state, question = _dumps(decision.state), _dumps(decision.question)
    if layout == "criterion_first":
        head = '{"criterion":'
        first = f' {question}, "options": {_dumps(options)}, "evidence":'
        rest = f" {state}}}"
    else:
        head = '{"evidence":'
        first = f' {state}, "criterion":'
        rest = f' {question}, "options": {_dumps(options)}}}'
    return Prompt(
        before=template.before,
        content=head + first + rest,
        after=template.after,
        head_end=len(head),
        prefix_end=len(head) + len(first),
        version=PROMPT_VERSIONS[layout],
    )


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain_template() -> PromptTemplate:
    """Return the layout for models that come with no chat template: see docs/prompt.md."""
    return PromptTemplate(before=f"{SYSTEM_TEXT}\n\n", after="\n\nAnswer:\n")


def render_template(source: str, *, bos_token: str, eos_token: str) -> PromptTemplate:
    """Render a Jinja chat template around stand-ins and split it where the user message goes.

    Templates that refuse a system message get its text at the start of the user message.

    Raises:
        StartupError: the template does not render, or does not carry the message unchanged.
    """
    try:
        template = _environment().from_string(source)
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            pieces = [_split(template, stand_in, tokens, system=True) for stand_in in _STAND_INS]
        except jinja2.TemplateError:
            pieces = [_split(template, stand_in, tokens, system=False) for stand_in in _STAND_INS]
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise StartupError(
            f"the chat template does not render ({type(error).__name__}: {error}); "
            "set BALLOT_CHAT_TEMPLATE to one that does"
        ) from error
    if pieces[0] != pieces[1]:
        raise StartupError(
            "the chat template changes with the text of the user message; "
            "set BALLOT_CHAT_TEMPLATE to one that does not"
        )
    return pieces[0]


def _split(
    template: jinja2.Template, content: str, tokens: dict[str, str], *, system: bool
) -> PromptTemplate:
    if system:
        lead = ""
        messages = [
            {"role": "system", "content": SYSTEM_TEXT},
            {"role": "user", "content": content},
        ]
    else:
        lead = f"{SYSTEM_TEXT}\n\n"
        messages = [{"role": "user", "content": lead + content}]
    rendered = template.render(
        messages=messages, add_generation_prompt=True, enable_thinking=False, **tokens
    )
    before, found, after = rendered.partition(content)
    if not found or content in after:
        raise ValueError("it must write the user message exactly once and unchanged")
    if SYSTEM_TEXT not in before:
        raise jinja2.TemplateError("it leaves out the system message")
    return PromptTemplate(before, after)


def _environment() -> jinja2.Environment:
    """Return the Jinja environment in which Hugging Face renders chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks assistant text for training; for a prompt it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    # A real date would give the same decision another prompt every day. Llama 3's template names
    # this day for renderers that have no clock.
    return datetime.date(2024, 7, 26).strftime(pattern)
