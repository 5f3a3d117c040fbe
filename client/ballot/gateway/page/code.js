// The panel that shows the current request as code, one tab a language.

import { byId, copyText, h } from "./dom.js";
import { FieldFault } from "./request.js";
import { SNIPPETS } from "./snippets.js";

const COPIED_MS = 1600;

/** The panel; `read()` returns the draft and the context that the snippets are made of. */
export class CodePanel {
  #chosen = SNIPPETS[0];
  #tabs;

  constructor({ read }) {
    this.read = read;
    this.#tabs = SNIPPETS.map((snippet) => this.#tab(snippet));
    byId("tabs").append(...this.#tabs);
    byId("tabs").addEventListener("keydown", (event) => this.#key(event));
    byId("copy").addEventListener("click", () => this.#copy());
    this.#choose(0);
  }

  /** Show the code for the draft as it is now. */
  refresh() {
    const { text, isCode } = this.#code();
    byId("code").textContent = text;
    byId("code").classList.toggle("muted", !isCode);
    byId("copy").disabled = !isCode;
  }

  #code() {
    const { draft, context } = this.read();
    try {
      return { text: this.#chosen.code(draft, context), isCode: true };
    } catch (error) {
      if (!(error instanceof FieldFault)) throw error;
      return { text: `Mend the state first. ${error.message}`, isCode: false };
    }
  }

  #tab(snippet) {
    const tab = h(
      "button",
      { type: "button", role: "tab", id: `tab-${snippet.id}`, aria: { controls: "code" } },
      snippet.title,
    );
    tab.addEventListener("click", () => this.#choose(SNIPPETS.indexOf(snippet)));
    return tab;
  }

  #choose(index) {
    this.#chosen = SNIPPETS[index];
    this.#tabs.forEach((tab, position) => {
      tab.ariaSelected = String(position === index);
      tab.tabIndex = position === index ? 0 : -1;
    });
    byId("code").setAttribute("aria-labelledby", `tab-${this.#chosen.id}`);
    this.refresh();
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const index = (SNIPPETS.indexOf(this.#chosen) + step + SNIPPETS.length) % SNIPPETS.length;
    this.#choose(index);
    this.#tabs[index].focus();
  }

  async #copy() {
    const { text, isCode } = this.#code();
    if (isCode) await showCopied(byId("copy"), text);
  }
}

/** Copy `text`, and say on `button` for a moment whether it worked. */
export async function showCopied(button, text) {
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  try {
    await copyText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => {
    button.textContent = label;
  }, COPIED_MS);
}
