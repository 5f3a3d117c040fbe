"""The reference prompt, against the hashes that its own pipeline published."""

from __future__ import annotations

import hashlib
import json

import pytest

from adapter.decision import Decision, Json, Option
from adapter.errors import StartupError
from adapter.native import parse_request
from adapter.prompt import PromptTemplate, plain_template, render_template, write_prompt
from adapter.wire import Limits
from tests.adapter_process import LLAMA_FILES, ROOT

TEMPLATES = LLAMA_FILES / "templates"
LABELS = ("A", "B", "C", "D")


def template(name: str) -> PromptTemplate:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    return render_template(source, bos_token="<bos>", eos_token="<eos>")


def decision(state: Json, question: str, *descriptions: str) -> Decision:
    options = tuple(Option(f"option-{text}", text) for text in descriptions)
    return Decision("any", state, question, options)


def example_decision(name: str) -> Decision:
    body = json.loads((ROOT / "examples" / name).read_text())
    return parse_request(body, Limits(decisions=64, options=255)).decisions[0]


def test_support_route_has_the_hash_that_the_article_prints() -> None:
    prompt = write_prompt(example_decision("support-route.json"), template("Qwen3.5-4B"), LABELS)

    assert prompt.sha256 == "016267542103ab91422c425d2234ec7e1b9aef77f9d3e481b96db2de7cca470a"


@pytest.mark.parametrize(
    ("row", "sha256"),
    [
        (
            decision(
                "The deployment completed at 14:02 UTC. Health checks passed in all three zones. "
                "No rollback was initiated.",
                "Is there evidence that the deployment succeeded?",
                "The deployment succeeded.",
                "The deployment did not succeed.",
                "The evidence is insufficient to decide.",
            ),
            "7ac35785358f0c656eeb741ca0a51f03e0133753a71e2879a18ad0ab56d0c024",
        ),
        (
            decision(
                "Policy: production deletion requires an approved change ticket. Request: list the "
                "names of files in the production backup; do not modify anything.",
                "Does the request require an approved change ticket under the stated policy?",
                "An approved change ticket is required.",
                "An approved change ticket is not required.",
                "The evidence is insufficient to decide.",
            ),
            "6884fc4a9117b63369dd79e3042b92f92678f1e08dba2600e93d1da6754b1787",
        ),
    ],
    ids=["deployment", "policy"],
)
def test_reference_rows_have_their_published_hashes(row: Decision, sha256: str) -> None:
    assert write_prompt(row, template("Qwen3.5-4B"), LABELS).sha256 == sha256


def test_state_is_written_as_python_writes_json() -> None:
    state: Json = {
        "unicode": "héllo → 世界",
        "escaped": 'quote " slash \\ tab \t newline \n bell \x07',
        "numbers": [-42, 1.0, 0.1, 1e20, 1e-05, -0.0],
        "rest": [True, None],
    }
    content = write_prompt(decision(state, "Q?", "x", "y"), plain_template(), LABELS).content

    assert content == (
        '{"evidence": {"unicode": "héllo → 世界", '
        '"escaped": "quote \\" slash \\\\ tab \\t newline \\n bell \\u0007", '
        '"numbers": [-42, 1.0, 0.1, 1e+20, 1e-05, -0.0], "rest": [true, null]}, '
        '"criterion": "Q?", "options": [{"letter": "A", "description": "x"}, '
        '{"letter": "B", "description": "y"}]}'
    )


def test_option_ids_do_not_reach_the_prompt() -> None:
    prompt = write_prompt(decision("s", "q", "x", "y"), template("Qwen3.5-4B"), LABELS)

    assert "option-x" not in prompt.text


def test_cuts_fall_around_the_state() -> None:
    prompt = write_prompt(decision("STATE", "q", "x", "y"), plain_template(), LABELS)

    assert prompt.content[: prompt.head_end] == '{"evidence":'
    assert prompt.content[prompt.head_end : prompt.prefix_end] == ' "STATE", "criterion":'


def test_criterion_first_is_the_documented_layout() -> None:
    documented = (ROOT / "docs" / "prompt.md").read_text()
    asked = decision("STATE", "QUESTION", "DESCRIPTION", "y")
    prompt = write_prompt(asked, plain_template(), LABELS, "criterion_first")

    assert prompt.version == "criterion-first-v1"
    assert f"`{prompt.version}`" in documented
    assert prompt.content == (
        '{"criterion": "QUESTION", "options": [{"letter": "A", "description": "DESCRIPTION"}, '
        '{"letter": "B", "description": "y"}], "evidence": "STATE"}'
    )
    assert prompt.content[: prompt.head_end] == '{"criterion":'
    assert prompt.content[prompt.prefix_end :] == ' "STATE"}'


def test_both_layouts_hold_the_same_json() -> None:
    asked = decision({"b": [1, None], "a": "é"}, "Q?", "x", "y")
    first, second = (
        json.loads(write_prompt(asked, plain_template(), LABELS, layout).content)
        for layout in ("evidence_first", "criterion_first")
    )

    assert first == second
    assert list(first) == ["evidence", "criterion", "options"]
    assert list(second) == ["criterion", "options", "evidence"]


def test_template_that_refuses_a_system_message_gets_it_in_the_user_message() -> None:
    pieces = template("google-gemma-2-2b-it")

    assert pieces.before.startswith("<bos><start_of_turn>user\nApply the supplied criterion")
    assert pieces.before.endswith("no explanation or reasoning.\n\n")
    assert pieces.after == "<end_of_turn>\n<start_of_turn>model\n"


def test_template_with_a_date_renders_the_same_every_day() -> None:
    before = template("meta-llama-Llama-3.1-8B-Instruct").before

    assert "Today Date: 26 Jul 2024" in before


def test_plain_layout_is_the_documented_one() -> None:
    documented = (ROOT / "docs" / "prompt.md").read_text()
    text = write_prompt(decision("s", "q", "x", "y"), plain_template(), LABELS).text

    assert text in documented


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content", "does not render"),
        ("{{ nothing.at_all }}", "does not render"),
        ("{{ messages[0].content }} only the rule", "exactly once and unchanged"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "exactly once"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "exactly once"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[-1].content | length }}",
            "changes with the text",
        ),
        ("{{ raise_exception('never') }}", "never"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "does not render"),
    ],
)
def test_bad_template_stops_start_up_with_its_reason(source: str, reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as caught:
        render_template(source, bos_token="", eos_token="")

    assert "BALLOT_CHAT_TEMPLATE" in str(caught.value)


def test_every_template_of_llama_cpp_renders() -> None:
    names = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))

    assert len(names) >= 3
    for name in names:
        pieces = template(name)
        assert "Apply the supplied criterion" in pieces.before, name
        assert pieces.after, name


def test_generation_blocks_render_as_their_body() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% generation %}<answer>{% endgeneration %}"
    )

    assert render_template(source, bos_token="", eos_token="").after == "<answer>"


def test_prompt_hash_is_of_its_utf8() -> None:
    prompt = write_prompt(decision("é", "q", "x", "y"), PromptTemplate("[", "]"), LABELS)
    written = (
        '[{"evidence": "é", "criterion": "q", "options": [{"letter": "A", "description": "x"}, '
        '{"letter": "B", "description": "y"}]}]'
    )

    assert prompt.sha256 == hashlib.sha256(written.encode()).hexdigest()
