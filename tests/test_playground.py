"""The playground in headless Chromium: the real page, gateway and adapter, and scripted faults."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, BrowserContext, Page, expect

from ballot.gateway import UrlTarget
from tests.adapter_process import PATIENCE, ROOT, AdapterProcess
from tests.browser import chromium
from tests.gateway_server import (
    Asked,
    Peer,
    RunningGateway,
    Script,
    ScriptedServer,
    answering,
    running_gateway,
)

KEY = "a-key-of-the-tests"
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 360, "height": 740}
# Text that means something to a shell, to HTML, to Python or to a here-document.
NASTY = 'it\'s "$HOME" `id` !x \\n \\\nJSON\nEOF <b>&amp;</b> {0} %s 😀 \u2028 \t end\\'
# What does not survive a round trip through JavaScript's values.
EXACT_JSON = (
    '{"2": 1.0, "1": 12345678901234567890, "e": 1E3, "s": "it\'s \\ud83d\\ude00 \\/ \\" \\u0007",'
    ' "n": [null, true, false, {}, [], -0.5]}'
)


@dataclass(frozen=True)
class Playground:
    """The page, as its users see it."""

    page: Page

    def fill(self, field: str, text: str) -> None:
        self.page.locator(f'[data-field="{field}"]').fill(text)

    def option(self, index: int, part: str) -> Any:
        return self.page.locator(f'#options [data-part="{part}"]').nth(index)

    @property
    def option_ids(self) -> list[str]:
        inputs = self.page.locator('#options [data-part="id"]')
        ids: list[str] = inputs.evaluate_all("inputs => inputs.map((input) => input.value)")
        return ids

    def choose(self, name: str) -> None:
        self.page.get_by_role("radio", name=name, exact=True).check()

    def load(self, example: str) -> None:
        self.page.locator("#examples summary").click()
        self.page.locator("#example-list button", has_text=example).click()

    def score(self) -> None:
        """Score, and return once there is a result that is not out of date."""
        self.page.get_by_role("button", name="Score").click()
        expect(self.page.locator("#result")).to_have_attribute("aria-busy", "false")
        expect(self.page.locator(".winner")).to_be_visible()
        expect(self.page.locator("#badge")).to_be_hidden()

    def paste(self, text: str) -> None:
        self.page.evaluate("text => navigator.clipboard.writeText(text)", text)
        self.page.keyboard.press("Control+V")

    def snippet(self, title: str) -> str:
        """Return what the button copies."""
        self.page.get_by_role("tab", name=title, exact=True).click()
        self.page.locator("#copy").click()
        expect(self.page.locator("#copy")).to_have_text("Copied")
        copied: str = self.page.evaluate("() => navigator.clipboard.readText()")
        expect(self.page.locator("#copy")).to_have_text("Copy")
        return copied

    @property
    def message(self) -> Any:
        return self.page.locator(".field-message")

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return width


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE * 1000)
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(adapter: AdapterProcess) -> Iterator[RunningGateway]:
    with running_gateway(decisions=UrlTarget(adapter.url)) as running:
        yield running


@contextlib.contextmanager
def opened(
    browser: Browser, url: str, *, model: str | None = None, **options: Any
) -> Iterator[Playground]:
    """Open the page at `url`, and check that all it asked for came from there, without a fault.

    `model` is answered for the gateway, which would ask the endpoint for it.
    """
    context: BrowserContext = browser.new_context(**{"viewport": DESKTOP, **options})
    if model is not None:
        models = {"models": [{"name": model}]}
        context.route("**/v1/models", lambda route: route.fulfill(json=models))
    context.set_default_timeout(PATIENCE * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    asked: list[str] = []
    faults: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.goto(url)
    expect(page.locator("#model")).not_to_have_text("\u00a0")
    yield Playground(page)
    context.close()
    origin = "/".join(url.split("/")[:3])
    assert all(address.startswith(f"{origin}/") for address in asked), asked
    assert [fault for fault in faults if "Failed to load resource" not in fault] == []


@pytest.fixture
def playground(browser: Browser, gateway: RunningGateway) -> Iterator[Playground]:
    with opened(browser, gateway.url) as shown:
        yield shown


@pytest.fixture
def phone(browser: Browser, gateway: RunningGateway) -> Iterator[Playground]:
    with opened(browser, gateway.url, viewport=PHONE) as shown:
        yield shown


@contextlib.contextmanager
def scripted(browser: Browser, script: Script, **options: Any) -> Iterator[tuple[Playground, Any]]:
    """Open the page in front of a gateway whose endpoint answers as `script` says."""
    with (
        ScriptedServer(script) as server,
        running_gateway(decisions=UrlTarget(server.url)) as gateway,
        opened(browser, gateway.url, model="scripted", **options) as shown,
    ):
        yield shown, server


def native(adapter: AdapterProcess, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the adapter's own result."""
    with adapter.client() as client:
        response = client.post("/invocations", json=body)
    result: dict[str, Any] = response.raise_for_status().json()["result"]
    return result


def percent(share: float) -> str:
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return "> 99.99 %" if 0.99995 < share < 1 else f"{share * 100:.2f} %"


def shown_bars(page: Page) -> list[tuple[str, str, str, str]]:
    """Return the bars: name, probability and logit as text, and the meter's own value."""
    read: list[list[str]] = page.locator(".bars li").evaluate_all(
        """bars => bars.map((bar) => [
            bar.dataset.option,
            bar.querySelector(".probability").textContent,
            bar.querySelector(".logit").textContent,
            bar.querySelector("[role=meter]").getAttribute("aria-valuenow"),
        ])"""
    )
    return [(name, probability, logit, value) for name, probability, logit, value in read]


def expected_bars(result: Mapping[str, Any]) -> list[tuple[str, str, str, float]]:
    return [
        (name, percent(share), f"{logit:.2f}", share)
        for name, share, logit in zip(
            result["option_ids"], result["probabilities"], result["option_logits"], strict=True
        )
    ]


def check_bars(page: Page, result: Mapping[str, Any]) -> None:
    shown = [(*texts, float(value)) for *texts, value in shown_bars(page)]
    assert shown == expected_bars(result)


def fact(page: Page, name: str) -> str:
    entry = page.locator(".facts div").filter(has=page.get_by_text(name, exact=True))
    return entry.locator("dd").inner_text()


def test_a_decision_is_shown_as_the_adapter_answers_it(
    playground: Playground, adapter: AdapterProcess, support_route: dict[str, Any]
) -> None:
    page = playground.page
    playground.score()

    result = native(adapter, support_route)
    check_bars(page, result)
    best = max(range(3), key=result["probabilities"].__getitem__)
    expect(page.locator(".winner strong")).to_have_text(result["option_ids"][best])
    expect(page.locator(".bars .best")).to_have_attribute("data-option", result["option_ids"][best])
    assert fact(page, "Allowed token mass") == percent(result["allowed_token_mass"])
    assert fact(page, "Input tokens").startswith(f"{result['input_tokens']}, ")
    assert fact(page, "Model") == result["model"]["file"]
    assert fact(page, "Prompt") == result["prompt_version"]
    # The demo model gives its mass to other tokens: the page says so.
    assert result["allowed_token_mass"] < 0.5
    expect(page.locator(".remark.warning")).to_contain_text("write something else")
    page.get_by_text("Raw JSON").click()
    raw = json.loads(page.get_by_role("region", name="Raw JSON").inner_text())["result"]
    assert raw["probabilities"] == result["probabilities"]
    assert raw["prompt_sha256"] == result["prompt_sha256"]


def test_the_examples_are_those_of_the_repository(
    playground: Playground, support_route: dict[str, Any], shared_state: dict[str, Any]
) -> None:
    asked: list[Any] = []
    playground.page.on("request", lambda request: asked.append(request.post_data_json))
    for title in ("Support route", "Refund allowed?", "Next step"):
        playground.load(title)
        playground.score()

    sent = [body["decision"] for body in asked if body]
    expected = [support_route["decision"], *shared_state["decisions"]]
    assert [{**body, "id": ""} for body in sent] == [{**one, "id": ""} for one in expected]
    # The order of a state's keys is part of the prompt.
    assert json.dumps(sent[1]["state"]) == json.dumps(expected[1]["state"])


def test_thirty_options_are_pasted_scored_and_sorted(
    playground: Playground, adapter: AdapterProcess
) -> None:
    page = playground.page
    page.get_by_role("button", name="Clear").click()
    playground.fill("state", "A parcel is late.")
    playground.fill("question", "Which topic is it about?")
    topics = [{"id": f"topic_{number}", "description": f"Topic {number}."} for number in range(30)]
    playground.option(0, "id").focus()
    playground.paste("\n".join(f"{topic['id']}: {topic['description']}" for topic in topics[:29]))
    assert len(playground.option_ids) == 30  # the second row was there, and still is
    playground.option(29, "id").fill(topics[29]["id"])
    playground.option(29, "description").fill(topics[29]["description"])
    playground.score()

    decision = {"state": "A parcel is late.", "question": "Which topic is it about?"}
    result = native(adapter, {"decision": {"id": "d", **decision, "options": topics}})
    check_bars(page, result)
    page.get_by_role("button", name="Likeliest first").click()
    by_share = sorted(expected_bars(result), key=lambda bar: -bar[3])
    assert [bar[0] for bar in shown_bars(page)] == [bar[0] for bar in by_share]


def test_pasted_lines_become_options_of_their_own(playground: Playground) -> None:
    page = playground.page
    playground.option(2, "description").focus()
    playground.paste(
        "- Ask a colleague\nsales\tAnother with the same id\n\n2. Warn: in words\nAsk a colleague\n"
    )

    assert playground.option_ids == [
        "account_access",
        "billing",
        "sales",
        "ask_a_colleague",
        "sales_2",
        "Warn",
        "ask_a_colleague_2",
    ]
    expect(playground.option(3, "description")).to_have_value("Ask a colleague")
    expect(playground.option(5, "description")).to_have_value("in words")
    page.get_by_role("button", name="Undo").click()
    assert playground.option_ids == ["account_access", "billing", "sales"]


def test_no_more_than_255_options_fit(playground: Playground) -> None:
    playground.option(0, "id").focus()
    playground.paste("\n".join(f"Option number {number}." for number in range(300)))

    assert len(playground.option_ids) == 255
    assert len(set(playground.option_ids)) == 255
    expect(playground.page.get_by_role("button", name="Add option")).to_be_disabled()
    expect(playground.page.locator("#status")).to_contain_text("48 more had no room")


def test_options_are_reordered_and_removed(playground: Playground) -> None:
    page = playground.page
    page.get_by_role("button", name="Move Option 1 down").click()
    assert playground.option_ids == ["billing", "account_access", "sales"]
    expect(page.get_by_role("button", name="Move Option 2 down")).to_be_focused()
    page.get_by_role("button", name="Move Option 2 down").click()
    assert playground.option_ids == ["billing", "sales", "account_access"]
    expect(page.get_by_role("button", name="Move Option 3 up")).to_be_focused()
    playground.option(2, "id").press("Alt+ArrowUp")
    assert playground.option_ids == ["billing", "account_access", "sales"]
    expect(playground.option(1, "id")).to_be_focused()
    expect(page.locator("#status")).to_have_text("“account_access” is now 2 of 3.")

    page.get_by_role("button", name="Remove Option 1").click()
    assert playground.option_ids == ["account_access", "sales"]
    expect(page.get_by_role("button", name="Remove Option 1")).to_be_disabled()
    page.get_by_role("button", name="Undo").click()
    assert playground.option_ids == ["billing", "account_access", "sales"]


def drag(page: Page, source: int, target: int) -> None:
    grips = page.locator("#options .grip")
    start, end = grips.nth(source).bounding_box(), grips.nth(target).bounding_box()
    assert start is not None
    assert end is not None
    page.mouse.move(start["x"] + 8, start["y"] + 18)
    page.mouse.down()
    page.mouse.move(end["x"] + 8, end["y"] + (30 if target > source else 4), steps=8)


def test_options_are_dragged(playground: Playground) -> None:
    drag(playground.page, 2, 0)
    playground.page.mouse.up()
    assert playground.option_ids == ["sales", "account_access", "billing"]
    drag(playground.page, 0, 2)
    playground.page.keyboard.press("Escape")
    playground.page.mouse.up()
    assert playground.option_ids == ["sales", "account_access", "billing"]


def test_undo_never_takes_newer_text_away(playground: Playground) -> None:
    page = playground.page
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    playground.fill("question", "Newer?")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


def test_yes_or_no_is_the_adapters_noul(playground: Playground, adapter: AdapterProcess) -> None:
    page = playground.page
    playground.load("Spam?")
    with page.expect_request("**/v1/systemone") as sent:
        playground.score()

    assert (sent.value.post_data or "").startswith('{"state":')
    with adapter.client() as client:
        question = {
            "type": "noul",
            "instructions": page.locator("#question").input_value(),
            "criteria": {
                "true": page.locator("#yes").input_value(),
                "false": page.locator("#no").input_value(),
            },
        }
        body = {"state": page.locator("#state").input_value(), "questions": {"q": question}}
        answer = client.post("/v1/systemone", json=body).json()["answers"]["q"]
    bars = shown_bars(page)
    assert [bar[:2] for bar in bars] == [
        ("Yes", percent(answer["noul"])),
        ("No", percent(1 - answer["noul"])),
    ]
    assert [bar[2] for bar in bars] == [f"{logit:.2f}" for logit in answer["x_option_logits"]]
    assert float(bars[0][3]) == answer["noul"]


def test_levels_are_the_adapters_score(playground: Playground, adapter: AdapterProcess) -> None:
    page = playground.page
    playground.load("Urgency")
    page.get_by_role("button", name="Move Level 0 down").click()
    page.get_by_role("button", name="Add level").click()
    page.keyboard.type("It is lost.")
    playground.score()

    levels = [
        "It needs attention this week.",
        "It can wait.",
        "It needs attention today.",
        "It needs attention within the hour.",
        "It is lost.",
    ]
    question = {"type": "score", "instructions": "How urgent is this ticket?", "criteria": levels}
    state = page.locator("#state").input_value()
    with adapter.client() as client:
        body = {"state": state, "questions": {"q": question}}
        answer = client.post("/v1/systemone", json=body).json()["answers"]["q"]
    expect(page.locator(".winner strong")).to_have_text(f"{answer['score']:.2f} of 4")
    assert [(name, float(value)) for name, _, _, value in shown_bars(page)] == list(
        answer["probabilities"].items()
    )


def test_both_orders_and_the_layout_are_asked_and_shown(
    playground: Playground, adapter: AdapterProcess, support_route: dict[str, Any]
) -> None:
    page = playground.page
    page.locator("#layout").select_option("criterion_first")
    page.locator("#orders").select_option("2")
    playground.score()

    scoring = {"layout": "criterion_first", "orders": 2}
    result = native(adapter, {**support_route, "scoring": scoring})
    check_bars(page, result)
    assert fact(page, "Prompt") == "criterion-first-v1"
    word = "agree." if result["orders_agree"] else "disagree"
    expect(page.locator(".remark").first).to_contain_text(f"orders {word}")
    page.get_by_text("Both orders", exact=True).click()
    cells = page.locator("tbody td").all_inner_texts()
    first, second = (order["probabilities"] for order in result["orders"])
    assert cells == [percent(share) for pair in zip(first, second, strict=True) for share in pair]


def test_a_json_state_is_checked_and_sent_as_it_stands(playground: Playground) -> None:
    page = playground.page
    playground.choose("JSON")
    page.get_by_role("button", name="Score").click()
    expect(playground.message).to_contain_text("This is not JSON")
    expect(page.locator("#state")).to_be_focused()
    expect(page.locator("#state")).to_have_attribute("aria-invalid", "true")

    playground.fill("state", EXACT_JSON)
    expect(page.locator("#state-note")).to_contain_text("Valid JSON")
    with page.expect_request("**/invocations") as sent:
        playground.score()
    body = sent.value.post_data
    assert body is not None
    assert body.startswith('{"decision":{"state":' + EXACT_JSON)


ERRORS = {
    "question": ("question", " ", "This is empty."),
    "description": ("options[1].description", "", "This is empty."),
    "id": ("options[2].id", " ", "This is empty."),
    "duplicate": ("options[2].id", "billing", "Another option has this id."),
}


@pytest.mark.parametrize(("field", "value", "message"), ERRORS.values(), ids=ERRORS)
def test_a_refused_field_gets_the_message(
    playground: Playground, field: str, value: str, message: str
) -> None:
    page = playground.page
    match = re.fullmatch(r"options\[(\d)\]\.(\w+)", field)
    element = (
        playground.option(int(match[1]), match[2])
        if match
        else page.locator(f'[data-field="{field}"]')
    )
    element.fill(value)
    page.get_by_role("button", name="Score").click()

    expect(playground.message).to_have_count(1)
    expect(element).to_be_focused()
    expect(element).to_have_attribute("aria-invalid", "true")
    expect(element).to_have_accessible_description(re.compile(f"{re.escape(message)}$", re.I))
    element.fill("mended")
    expect(playground.message).to_have_count(0)
    expect(element).not_to_have_attribute("aria-invalid", "true")
    playground.score()


SYSTEM_ONE_ERRORS = {
    "levels": ("Urgency", '#levels [data-part="description"] >> nth=2', "level needs a desc"),
    "state": ("Urgency", "#state", "must be a string, an object or an array"),
}


@pytest.mark.parametrize(
    ("example", "place", "message"), SYSTEM_ONE_ERRORS.values(), ids=SYSTEM_ONE_ERRORS
)
def test_a_field_that_system_one_refuses_gets_the_message(
    playground: Playground, example: str, place: str, message: str
) -> None:
    page = playground.page
    playground.load(example)
    if place == "#state":
        playground.choose("JSON")
        playground.fill("state", "1")
    else:
        page.locator(place).fill(" ")
    page.get_by_role("button", name="Score").click()

    expect(page.locator(place)).to_be_focused()
    expect(page.locator(place)).to_have_accessible_description(re.compile(message))


def test_a_noul_that_asks_nothing_is_told_at_its_question(playground: Playground) -> None:
    playground.load("Spam?")
    for field in ("question", "yes", "no"):
        playground.fill(field, "")
    playground.page.get_by_role("button", name="Score").click()
    expect(playground.page.locator("#question")).to_be_focused()
    expect(playground.message).to_contain_text("needs instructions")


def test_an_error_without_a_field_is_an_alert(playground: Playground) -> None:
    page = playground.page
    playground.fill("state", "word " * 6000)
    page.get_by_role("button", name="Score").click()

    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("too_many_tokens")
    expect(alert).to_contain_text("Shorten the state")
    expect(alert.get_by_role("button")).to_have_count(0)  # the same request would fail again
    playground.fill("state", "short")
    playground.score()
    expect(alert).to_be_empty()


RESULT = {
    "result": {
        "option_ids": ["account_access", "billing", "sales"],
        "probabilities": [0.000001, 0.9999989, 0.0000001],
        "option_logits": [1.0, 2.5, -3.0],
        "allowed_token_mass": 0.99,
        "input_tokens": 130,
        "cached_tokens": 40,
        "prompt_version": "direct-options-v1",
        "prompt_sha256": "0" * 64,
        "model": {"file": "m.gguf"},
        "timing": {"queue_seconds": 0, "forward_seconds": 0.1, "total_seconds": 0.1},
    }
}


def busy(message: str = "the queue is full") -> bytes:
    error = {"error": message, "code": "busy", "retryable": True, "field": None, "request_id": "r1"}
    return json.dumps(error).encode()


def test_busy_offers_to_try_again_when_the_server_says(browser: Browser) -> None:
    answers = iter([(503, busy(), {"retry_after": "3"}), (200, json.dumps(RESULT).encode(), {})])

    def script(peer: Peer, _: Asked) -> None:
        status, body, headers = next(answers)
        peer.answer(status, body, **headers)

    with scripted(browser, script) as (playground, server):
        page = playground.page
        page.clock.install()
        page.get_by_role("button", name="Score").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The queue is full.")
        expect(alert).to_contain_text("busy · request r1")
        retry = alert.get_by_role("button")
        expect(retry).to_have_text("Try again in 3 s")
        expect(retry).to_be_disabled()
        page.clock.run_for(3000)
        expect(retry).to_have_text("Try again")
        retry.click()
        expect(page.locator(".winner strong")).to_have_text("billing")
        expect(alert).to_be_empty()
        assert len(server.asked) == 2


def test_shares_are_never_rounded_to_nothing_or_all(browser: Browser) -> None:
    with scripted(browser, answering(RESULT)) as (playground, _):
        playground.score()
        shown = [probability for _, probability, _, _ in shown_bars(playground.page)]
        assert shown == ["< 0.01 %", "> 99.99 %", "< 0.01 %"]
        expect(playground.page.locator(".remark.warning")).to_have_count(0)


def test_an_answer_that_is_no_result_is_told(browser: Browser) -> None:
    with scripted(browser, answering({"result": {}})) as (playground, _):
        playground.page.get_by_role("button", name="Score").click()
        expect(playground.page.get_by_role("alert")).to_contain_text("The answer is not a result")


def test_a_gateway_that_is_gone_is_told(browser: Browser) -> None:
    with scripted(browser, answering(RESULT)) as (playground, _):
        page = playground.page
        page.route("**/invocations", lambda route: route.abort("connectionrefused"))
        page.get_by_role("button", name="Score").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The gateway does not answer")
        page.unroute("**/invocations")
        alert.get_by_role("button", name="Try again").click()
        expect(page.locator(".winner")).to_be_visible()


@contextlib.contextmanager
def held(browser: Browser, **options: Any) -> Iterator[tuple[Playground, threading.Event]]:
    """Open the page in front of an endpoint that answers while the event is set."""
    release = threading.Event()

    def script(peer: Peer, _: Asked) -> None:
        assert release.wait(PATIENCE)
        peer.answer(200, json.dumps(RESULT).encode())

    with scripted(browser, script, **options) as (playground, _):
        try:
            yield playground, release
        finally:
            release.set()


def test_one_request_at_a_time_that_can_be_cancelled(browser: Browser) -> None:
    with held(browser) as (playground, release):
        page = playground.page
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))
        page.keyboard.press("Control+Enter")
        expect(page.locator("#submit")).to_have_attribute("aria-disabled", "true")
        page.keyboard.press("Control+Enter")
        page.locator("#submit").dispatch_event("click")
        expect(page.locator("#submit-label")).to_have_text("Scoring…")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_have_text("Cancelled.")
        expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
        assert len(sent) == 1
        release.set()
        playground.score()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_moves_while_scoring(browser: Browser, viewport: dict[str, int]) -> None:
    with held(browser, viewport=viewport, reduced_motion="reduce") as (playground, release):
        release.set()
        playground.score()
        release.clear()
        before = boxes(playground.page)
        playground.page.keyboard.press("Control+Enter")
        expect(playground.page.locator("#submit-label")).to_have_text("Scoring…")
        assert boxes(playground.page) == before
        release.set()
        expect(playground.page.locator("#submit-label")).to_have_text("Score")
        assert boxes(playground.page) == before


def boxes(page: Page) -> list[Any]:
    return [
        page.locator(place).bounding_box()
        for place in ("#form", "#submit", "#result", "#figures", "#code-card")
    ]


def test_an_edited_request_marks_the_result(playground: Playground) -> None:
    page = playground.page
    playground.score()
    playground.fill("question", "Which queue?")
    expect(page.locator("#badge")).to_contain_text("Out of date")
    playground.fill("question", "Which queue should handle this request?")
    expect(page.locator("#badge")).to_be_hidden()
    page.get_by_role("button", name="Move Option 1 down").click()
    expect(page.locator("#badge")).to_contain_text("Out of date")
    playground.score()


def test_the_key_is_asked_for_and_kept_nowhere(browser: Browser, adapter: AdapterProcess) -> None:
    with (
        running_gateway(key=KEY, decisions=UrlTarget(adapter.url)) as gateway,
        opened(browser, gateway.url) as playground,
    ):
        page = playground.page
        key = page.get_by_label("Gateway key")
        expect(key).to_be_visible()  # the model's name was refused already
        page.get_by_role("button", name="Score").click()
        expect(playground.message).to_have_text("This gateway wants a key.")
        expect(key).to_be_focused()
        key.fill("wrong")
        key.press("Enter")
        expect(playground.message).to_have_text(re.compile("not the gateway.s key"))
        key.fill("schlüssel")
        key.press("Enter")
        expect(playground.message).to_have_text("A key is printable ASCII without spaces.")
        key.fill(KEY)
        playground.score()
        expect(page.locator("#model")).to_contain_text("SmolLM2")

        snippet = playground.snippet("curl")
        assert "$BALLOT_GATEWAY_KEY" in snippet
        kept = page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}])")
        assert KEY not in kept + snippet + page.url
        page.reload()
        expect(key).to_have_value("")


def test_a_reload_keeps_the_draft_and_asks_nothing(playground: Playground) -> None:
    page = playground.page
    playground.load("Tool guard")
    playground.fill("question", NASTY)
    scored: list[str] = []
    page.on("request", lambda request: scored.append(request.method))
    page.reload()

    expect(page.locator("#question")).to_have_value(NASTY.replace("\r\n", "\n"))
    expect(page.get_by_role("radio", name="JSON")).to_be_checked()
    expect(page.locator("#orders")).to_have_value("2")
    assert playground.option_ids == ["allow", "ask", "deny"]
    assert "POST" not in scored


def test_a_link_opens_the_draft_and_leaves_the_address(
    browser: Browser, playground: Playground
) -> None:
    page = playground.page
    playground.fill("state", NASTY)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#share")).to_have_text("Copied")
    link = page.evaluate("() => navigator.clipboard.readText()")
    assert "#" not in page.url

    with opened(browser, link) as other:
        expect(other.page.locator("#state")).to_have_value(NASTY)
        assert "#" not in other.page.url
        expect(other.page.locator(".winner")).to_have_count(0)
        other.page.evaluate("link => { location.href = link; }", link[:-7])
        expect(other.page.locator("#status")).to_contain_text("cannot be read")
        expect(other.page.locator("#state")).to_have_value(NASTY)


def test_a_decision_is_made_by_keyboard_alone(
    playground: Playground, adapter: AdapterProcess
) -> None:
    page = playground.page

    def tab_to(place: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            ring = page.evaluate("document.activeElement.matches(':focus-visible')")
            assert ring
            assert outline != "none" or page.evaluate("document.activeElement.type") == "radio"
            if page.locator(place).evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"Tab does not reach {place}")

    tab_to("#clear")
    page.keyboard.press("Enter")
    tab_to("#state")
    page.keyboard.type("It rains.")
    tab_to("#question")
    page.keyboard.type("Take an umbrella?")
    tab_to("#options input >> nth=0")
    # Enter goes on from field to field, and from the last one to a new row.
    for text in ("no", "Leave it.", "maybe", "Ask again.", "yes", "Take it."):
        page.keyboard.type(text)
        page.keyboard.press("Enter")
    page.keyboard.type("never")
    page.keyboard.press("Alt+ArrowUp")
    tab_to("[aria-label='Remove Option 3']")
    page.keyboard.press("Space")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".winner")).to_be_visible()

    options = [
        {"id": "no", "description": "Leave it."},
        {"id": "maybe", "description": "Ask again."},
        {"id": "yes", "description": "Take it."},
    ]
    decision = {"id": "d", "state": "It rains.", "question": "Take an umbrella?"}
    check_bars(page, native(adapter, {"decision": {**decision, "options": options}}))
    tab_to("#tab-curl")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="boto3")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_contain_text("invoke_endpoint")


def test_a_phone_shows_everything_without_sideways_scroll(phone: Playground) -> None:
    page = phone.page
    phone.option(0, "id").fill("an_option_with_a_very_long_id_" * 6)
    phone.option(0, "description").fill("Donaudampfschifffahrtsgesellschaft" * 8)
    page.locator("#orders").select_option("2")
    phone.score()
    expect(page.locator(".winner")).to_be_in_viewport()
    page.get_by_text("Both orders", exact=True).click()
    page.get_by_text("Raw JSON").click()
    assert phone.overflow() == 0
    phone.option(1, "id").fill("")
    page.get_by_role("button", name="Score").click()
    expect(phone.message).to_be_in_viewport()
    assert phone.overflow() == 0
    for example in ("Spam?", "Urgency"):
        phone.load(example)
        phone.score()
        assert phone.overflow() == 0
    page.locator("#examples summary").click()
    assert phone.overflow() == 0


_TEXT_COLOURS = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [red, green, blue, alpha = 1] = parse(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return [red, green, blue];
    }
    return null;
  };
  const hasText = (element) => element.matches("input, textarea, select") ||
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((element) => element.checkVisibility({ visibilityProperty: true }))
    .filter((element) => hasText(element) && !element.closest(":disabled, script, noscript"))
    .map((element) => ({
      what: element.outerHTML.slice(0, 80),
      text: parse(getComputedStyle(element).color).slice(0, 3),
      ground: ground(element),
    }));
}"""


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast ratio of WCAG 2.2."""

    def luminance(rgb: list[float]) -> float:
        parts = [value / 255 for value in rgb]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(browser: Browser, gateway: RunningGateway, scheme: Any) -> None:
    with opened(browser, gateway.url, color_scheme=scheme, reduced_motion="reduce") as playground:
        page = playground.page
        playground.load("Tool guard")
        playground.score()
        page.get_by_text("Both orders", exact=True).click()
        shown = page.evaluate(_TEXT_COLOURS)
        playground.option(0, "id").fill("")
        page.get_by_role("button", name="Score").click()
        expect(playground.message).to_be_visible()
        shown += page.evaluate(_TEXT_COLOURS)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert len(shown) > 60
    poor = [one for one in shown if contrast(one["text"], one["ground"]) < 4.5]
    assert poor == []
    rgb = [float(part) for part in re.findall(r"[\d.]+", ground)]
    assert (contrast(rgb, [255, 255, 255]) < 2) == (scheme == "light")


def test_the_theme_button_outlives_a_reload(browser: Browser, gateway: RunningGateway) -> None:
    with opened(browser, gateway.url, color_scheme="light") as playground:
        page = playground.page
        button = page.get_by_role("button", name="Dark theme")
        expect(button).to_have_attribute("aria-pressed", "false")
        button.click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.reload()
        expect(button).to_have_attribute("aria-pressed", "true")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
        button.click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


NAMED_ROLES = {"button", "textbox", "combobox", "radio", "tab", "tabpanel", "meter", "link"}


@pytest.mark.parametrize("example", ["Tool guard", "Spam?", "Urgency"])
def test_every_control_has_a_name(playground: Playground, example: str) -> None:
    """The names are those that the browser itself tells assistive technology."""
    page = playground.page
    playground.load(example)
    playground.score()
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    controls = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in NAMED_ROLES
    ]
    assert len(controls) > 15
    assert [role for role, name in controls if not name.strip()] == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def modules(browser: Browser, gateway: RunningGateway) -> Iterator[Page]:
    with opened(browser, gateway.url) as shown:
        yield shown.page


@settings(deadline=None, max_examples=150)
@given(value=json_values, ascii_only=st.booleans(), width=st.integers(20, 100))
def test_json_is_rewritten_without_changing_it(
    modules: Page, value: Any, ascii_only: bool, width: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    shown, python = modules.evaluate(
        """async ([text, width]) => {
          const { format, python } = await import("./json.js");
          return [format(text, { width }), python(text, { width })];
        }""",
        [text, width],
    )
    assert exact(json.loads(shown)) == exact(value)
    assert exact(ast.literal_eval(python)) == exact(value)


def exact(value: Any) -> str:
    """Return a text that tells 1 from 1.0, -0.0 from 0.0, and orders of keys."""
    return json.dumps(value)


@dataclass(frozen=True)
class Relay:
    """An adapter that keeps what it was asked, behind its own routes and SageMaker's."""

    adapter: AdapterProcess

    def __call__(self, peer: Peer, asked: Asked) -> None:
        path = "/invocations" if asked.path == "/endpoints/decide/invocations" else asked.path
        with self.adapter.client() as client:
            response = client.request(
                asked.method,
                path,
                content=asked.body,
                headers={"content-type": asked.headers.get("content-type", "")},
            )
        peer.answer(response.status_code, response.content)


def run_snippet(title: str, code: str, runtime: str) -> str:
    """Run a snippet as it was copied, and return what it printed."""
    command = ["bash", "-c", code] if title == "curl" else [sys.executable, "-c", code]
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        command,
        env={
            **clean,
            "PYTHONPATH": str(ROOT / "client"),
            "BALLOT_ENDPOINT": "decide",
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": runtime,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def edit_everything(playground: Playground, example: str) -> None:
    """Load an example and give it text and JSON that are hard to quote."""
    playground.load(example)
    playground.choose("JSON")
    playground.fill("state", EXACT_JSON)
    playground.fill("question", NASTY)
    if example == "Tool guard":
        playground.option(0, "id").fill('it\'s "$1" \\')
        playground.option(0, "description").fill(NASTY)
        playground.page.locator("#layout").select_option("criterion_first")
    elif example == "Spam?":
        playground.fill("no", NASTY)
    else:
        playground.page.locator('#levels [data-part="description"]').first.fill(NASTY)


@pytest.mark.parametrize("example", ["Tool guard", "Spam?", "Urgency"])
def test_each_copied_snippet_sends_what_the_page_sends(
    browser: Browser, adapter: AdapterProcess, example: str
) -> None:
    with (
        ScriptedServer(Relay(adapter)) as server,
        running_gateway(decisions=UrlTarget(server.url)) as gateway,
        opened(browser, gateway.url) as playground,
    ):
        edit_everything(playground, example)
        playground.score()
        by_page = json.loads(last_post(server))
        shares = [float(value) for *_, value in shown_bars(playground.page)]
        expected_level = sum(level * share for level, share in enumerate(shares))
        figures = {round(figure, 6) for figure in (*shares, expected_level)}
        for title in ("curl", "boto3", "ballot", "TypeSafe SDK"):
            code = playground.snippet(title)
            printed = run_snippet(title, code, server.url)
            sent = json.loads(last_post(server))
            state = sent["decision"]["state"] if "decision" in sent else sent["state"]
            assert exact(state) == exact(json.loads(EXACT_JSON))
            if title != "TypeSafe SDK" or example != "Tool guard":
                assert sent == by_page, title
                assert figures & numbers(printed), title


def numbers(text: str) -> set[float]:
    return {round(float(number), 6) for number in re.findall(r"\d+\.\d+(?:e-\d+)?", text)}


def last_post(server: ScriptedServer) -> bytes:
    return [asked.body for asked in server.asked if asked.method == "POST"][-1]


def test_the_sdk_gives_a_choice_the_same_bits(
    playground: Playground, adapter: AdapterProcess, support_route: dict[str, Any]
) -> None:
    printed = run_snippet("TypeSafe SDK", playground.snippet("TypeSafe SDK"), "")
    result = native(adapter, support_route)
    assert ast.literal_eval(printed) == dict(
        zip(result["option_ids"], result["probabilities"], strict=True)
    )


def test_the_page_is_served_with_a_policy_that_it_keeps(gateway: RunningGateway) -> None:
    with httpx.Client(base_url=gateway.url, trust_env=False) as client:
        page = client.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|https?://", page.text) is None
