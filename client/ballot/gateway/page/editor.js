// The form: shows a draft, reads one back, and finds the input of a field.

import { byId } from "./dom.js";
import { MAX_LEVELS, MAX_OPTIONS } from "./draft.js";
import { fault } from "./json.js";
import { List } from "./lists.js";

const FIELD = /^(options|levels)\[(\d+)\]\.(id|description)$/;
const TEXTS = ["state", "question", "yes", "no", "layout", "orders"];

/** The editor; `changed()` is called after every change, `announce(message, undo)` as by `List`. */
export class Editor {
  constructor({ changed, announce }) {
    this.form = byId("form");
    const shared = { least: 2, changed: () => this.#changed(), announce };
    this.options = new List({
      ...shared, root: byId("options"), named: true, noun: "Option", first: 1, most: MAX_OPTIONS,
    });
    this.levels = new List({
      ...shared, root: byId("levels"), named: false, noun: "Level", first: 0, most: MAX_LEVELS,
    });
    this.changed = changed;
    byId("add-option").addEventListener("click", () => this.options.add());
    byId("add-level").addEventListener("click", () => this.levels.add());
    this.form.addEventListener("input", (event) => {
      if (event.target.id !== "key") this.#changed();
    });
  }

  get draft() {
    const { elements } = this.form;
    return {
      ...Object.fromEntries(TEXTS.map((name) => [name, byId(name).value])),
      type: elements.type.value,
      stateIsJson: elements["state-kind"].value === "json",
      options: this.options.items,
      levels: this.levels.items,
    };
  }

  set draft(draft) {
    const { elements } = this.form;
    for (const name of TEXTS) byId(name).value = draft[name];
    elements.type.value = draft.type;
    elements["state-kind"].value = draft.stateIsJson ? "json" : "text";
    this.options.items = draft.options;
    this.levels.items = draft.levels;
    this.#changed();
  }

  /** Return the element of `field`, as request.js names it, or null where there is none. */
  element(field) {
    const match = FIELD.exec(field);
    if (match === null) return this.form.querySelector(`[data-field="${field}"]`);
    return this[match[1]].input(Number(match[2]), match[3]);
  }

  /** Return the id input of the first option whose id an earlier one has, or null. */
  duplicateId() {
    const ids = this.options.items.map((item) => item.id);
    const index = ids.findIndex((id, position) => ids.indexOf(id) < position);
    return index < 0 ? null : this.options.input(index, "id");
  }

  #changed() {
    const { type, stateIsJson, state, options } = this.draft;
    for (const kind of ["choice", "noul", "score"]) byId(kind).hidden = kind !== type;
    for (const name of ["layout", "orders"]) byId(name).disabled = type !== "choice";
    byId("scoring-note").hidden = type === "choice";
    byId("option-count").textContent = `${options.length} of at most ${MAX_OPTIONS}.`;
    byId("add-option").disabled = this.options.isFull;
    byId("add-level").disabled = this.levels.isFull;
    byId("state").classList.toggle("mono", stateIsJson);
    byId("state-note").textContent = stateIsJson ? jsonNote(state) : "What the decision is about.";
    this.changed();
  }
}

const jsonNote = (text) => fault(text) ?? "Valid JSON. It is sent as it stands here.";
