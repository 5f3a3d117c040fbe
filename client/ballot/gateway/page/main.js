// Wires the page: the editor, the code panel, scoring, and what is said about them.

import { Problem, call, unreadable } from "./api.js";
import { CodePanel, showCopied } from "./code.js";
import { byId, h } from "./dom.js";
import { asDraft, emptyDraft, isLinked, keep, kept, link, linked } from "./draft.js";
import { Editor } from "./editor.js";
import { EXAMPLES } from "./examples.js";
import { clearMessages, showAt } from "./fields.js";
import { format } from "./json.js";
import { FieldFault, request } from "./request.js";
import { figures, summary, viewOf } from "./results.js";

const REFRESH_MS = 120;
const NARROW = matchMedia("(width < 60rem)");
const BASE = new URL(".", document.baseURI).href.replace(/\/$/, "");

const page = {
  scoring: null, // the AbortController of the request in flight
  scored: null, // the request that the shown result answers
  keyWanted: false,
  refresh: null,
};

const editor = new Editor({ changed, announce });
const code = new CodePanel({
  read: () => ({ draft: editor.draft, context: { base: BASE, key: page.keyWanted } }),
});

function changed() {
  clearMessages();
  clearTimeout(page.refresh);
  page.refresh = setTimeout(refresh, REFRESH_MS);
  markStale();
}

function refresh() {
  keep(editor.draft);
  code.refresh();
}

/** Say `message`, with a button that takes its cause back where there is an `undo`. */
function announce(message, undo = null) {
  byId("status").textContent = message;
  byId("undo").hidden = undo === null;
  byId("undo").onclick = () => {
    undo();
    announce("Taken back.");
  };
}

function replaceDraft(draft, message) {
  const before = editor.draft;
  editor.draft = draft;
  announce(message, () => {
    editor.draft = before;
  });
}

function openLink() {
  if (!isLinked()) return;
  const draft = linked();
  if (draft === null) announce("The link cannot be read: it may be cut off.");
  else replaceDraft(draft, "The link’s request is loaded.");
}

/** Return the request of the draft, or null where it is not one yet. */
function currentRequest() {
  try {
    return request(editor.draft);
  } catch (error) {
    if (error instanceof FieldFault) return null;
    throw error;
  }
}

function markStale() {
  if (page.scored === null) return;
  const isStale = currentRequest()?.body !== page.scored;
  byId("figures").classList.toggle("stale", isStale);
  if (page.scoring === null) showBadge(isStale ? "Out of date: the request has changed" : "");
}

function showBadge(text) {
  byId("badge").hidden = !text;
  byId("badge").textContent = text;
}

async function score() {
  if (page.scoring !== null) return;
  clearMessages();
  clearProblem();
  const draft = editor.draft;
  try {
    const { path, body } = request(draft);
    const answer = await whileScoring((signal) =>
      call({ path, body, key: byId("key").value, signal }),
    );
    showResult(draft, body, answer);
  } catch (error) {
    if (error.name === "AbortError") announce("Cancelled.");
    else if (error instanceof FieldFault) showFault(error);
    else if (error instanceof Problem) showProblem(error);
    else throw error;
  } finally {
    markStale();
  }
}

/** Run `work` as the one request in flight, which `Cancel` ends. */
async function whileScoring(work) {
  page.scoring = new AbortController();
  const started = performance.now();
  const tick = () => {
    const seconds = Math.floor((performance.now() - started) / 1000);
    showBadge(seconds ? `Scoring, ${seconds} s` : "Scoring");
  };
  const timer = setInterval(tick, 1000);
  announce("");
  tick();
  setBusy(true);
  try {
    return await work(page.scoring.signal);
  } finally {
    clearInterval(timer);
    page.scoring = null;
    showBadge("");
    setBusy(false);
  }
}

function setBusy(isBusy) {
  document.body.classList.toggle("busy", isBusy);
  byId("result").ariaBusy = String(isBusy);
  // Not `disabled`: the button keeps the focus, and `score` refuses a second request itself.
  byId("submit").ariaDisabled = String(isBusy);
  byId("submit-label").textContent = isBusy ? "Scoring…" : "Score";
}

function showResult(draft, body, { text, json, seconds }) {
  const view = viewOf(draft, json);
  if (view === null) throw unreadable({ status: 200 });
  page.scored = body;
  byId("figures").replaceChildren(...figures(view, { raw: format(text), seconds }));
  announce(summary(view));
  if (!byId("key-row").hidden) greet();
  if (NARROW.matches) byId("result").scrollIntoView();
}

/** Show a problem at its field where it has one on this page, else in the place for all others. */
function showProblem(problem) {
  if (problem.status === 401) {
    wantKey();
    const isWrong = byId("key").value !== "";
    const message = isWrong ? "This is not the gateway’s key." : "This gateway wants a key.";
    showFault({ field: "key", message });
    return;
  }
  if (problem.code === "duplicate_id") {
    const element = editor.duplicateId() ?? editor.element("options");
    showFault({ element, message: "Another option has this id." });
    return;
  }
  const element = problem.field === null ? null : editor.element(problem.field);
  if (element === null) showGeneral(problem);
  else showFault({ element, message: problem.message });
}

function showFault({ field, element = editor.element(field), message }) {
  showAt(element, message);
  announce("Not scored: see the message in the form.");
}

function wantKey() {
  page.keyWanted = true;
  byId("key-row").hidden = false;
  code.refresh();
}

function showGeneral(problem) {
  const reference = [problem.code, problem.requestId && `request ${problem.requestId}`];
  const small = reference.filter(Boolean).join(" · ");
  byId("problem").replaceChildren(
    h(
      "div",
      { class: "problem" },
      h("p", {}, h("strong", {}, problem.title)),
      h("p", {}, problem.message),
      problem.advice ? h("p", {}, problem.advice) : "",
      small ? h("p", { class: "note mono" }, small) : "",
      problem.canRetry ? retryButton(problem.retryAfter ?? 0) : "",
    ),
  );
  if (NARROW.matches) byId("result").scrollIntoView();
}

/** Return a button that scores again, once the server's own waiting time of `seconds` is over. */
function retryButton(seconds) {
  const button = h("button", { type: "button" });
  let left = seconds;
  const show = () => {
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left <= 0) clearInterval(timer);
    left -= 1;
  };
  const timer = setInterval(show, 1000);
  show();
  button.addEventListener("click", score);
  return button;
}

function clearProblem() {
  byId("problem").replaceChildren();
}

/** Say in the head which model answers here, as far as the server tells. */
async function greet() {
  try {
    const { json } = await call({ path: "v1/models", key: byId("key").value });
    byId("model").textContent = json.models?.[0]?.name ?? "";
    byId("model").title = json.models?.[0]?.description ?? "";
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) wantKey();
    byId("model").textContent = error.status === 401 ? "Locked: give the key" : error.title;
  }
}

function addExamples() {
  const menu = byId("examples");
  const items = EXAMPLES.map((example) => {
    const button = h(
      "button",
      { type: "button" },
      h("strong", {}, example.title),
      h("span", { class: "note" }, example.note),
    );
    button.addEventListener("click", () => {
      menu.open = false;
      menu.querySelector("summary").focus();
      replaceDraft(asDraft(example), `“${example.title}” is loaded.`);
    });
    return h("li", {}, button);
  });
  byId("example-list").append(...items);
  document.addEventListener("pointerdown", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

function addThemeButton() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    byId("theme").ariaPressed = String(isDark());
  };
  byId("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    root.dataset.theme = theme;
    try {
      localStorage.setItem("ballot-theme", theme);
    } catch {
      // Storage is switched off: the theme lasts as long as the page.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}

function addShortcuts() {
  const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
  byId("shortcut").textContent = isApple ? "⌘ ⏎" : "Ctrl ⏎";
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    score();
  });
}

editor.form.addEventListener("submit", (event) => {
  event.preventDefault();
  score();
});
byId("cancel").addEventListener("click", () => page.scoring?.abort());
byId("clear").addEventListener("click", () => replaceDraft(emptyDraft(), "The form is empty."));
byId("share").addEventListener("click", () => showCopied(byId("share"), link(editor.draft)));
addExamples();
addThemeButton();
addShortcuts();
// Taking back must never take newer text away.
editor.form.addEventListener("input", () => {
  byId("undo").hidden = true;
});
window.addEventListener("hashchange", openLink);
window.addEventListener("pagehide", () => keep(editor.draft));
editor.draft = kept() ?? asDraft(EXAMPLES[0]);
openLink();
refresh();
greet();
