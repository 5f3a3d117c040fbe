// A list of described answers: options with ids, or levels without.

import { h, icon } from "./dom.js";

const BULLET = /^\s*(?:[-*•]|\d+[.)])\s+/;
const NAMED = /^([\p{L}\p{N}_.-]{1,64})\s*(?:\t|:\s)\s*(\S.*)$/u;
const SCROLL_MARGIN = 48;

/**
 * An editable list in the `ol` element `root`.
 *
 * `named` says whether items have ids, `noun` what one is called, `first` the number of the first;
 * it holds `least` items or more, and never over `most`. `changed()` is called after every change,
 * `announce(message, undo)` after those that were more than typing.
 */
export class List {
  constructor({ root, named, noun, first, least, most, changed, announce }) {
    Object.assign(this, { root, named, noun, first, least, most, changed, announce });
    root.addEventListener("click", (event) => this.#click(event));
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("paste", (event) => this.#paste(event));
    root.addEventListener("pointerdown", (event) => this.#drag(event));
  }

  get items() {
    return this.#rows.map((row) =>
      Object.fromEntries(inputsOf(row).map((input) => [input.dataset.part, input.value])),
    );
  }

  set items(items) {
    this.root.replaceChildren(...items.map((item) => this.#row(item)));
    this.#number();
  }

  get isFull() {
    return this.#rows.length >= this.most;
  }

  /** Return the input of `part` ("id" or "description") of the item at `index`, or null. */
  input(index, part) {
    return this.#rows[index]?.querySelector(`[data-part="${part}"]`) ?? null;
  }

  /** Add an empty item at the end, and go there. */
  add() {
    if (this.isFull) {
      this.announce(`${this.most} ${this.noun}s are the most.`);
      return;
    }
    this.root.append(this.#row({}));
    this.#number();
    this.changed();
    inputsOf(this.#rows.at(-1))[0].focus();
  }

  get #rows() {
    return [...this.root.children];
  }

  #row({ id = "", description = "" }) {
    const button = (action) =>
      h("button", { type: "button", class: "quiet", data: { action } }, icon(action));
    return h(
      "li",
      { class: "row", data: { host: "" } },
      h("span", { class: "grip", title: "Drag to reorder" }, icon("grip")),
      h("span", { class: "number", aria: { hidden: "true" } }),
      this.named ? this.#field("input", "id", id) : null,
      this.#field("textarea", "description", description),
      h("span", { class: "tools" }, button("up"), button("down"), button("remove")),
    );
  }

  #field(tag, part, value) {
    const plain = { spellcheck: false, autocomplete: "off", autocapitalize: "off" };
    const shape = tag === "textarea" ? { rows: 1 } : { type: "text", maxLength: 256, ...plain };
    return h(tag, { ...shape, value, placeholder: part, data: { part } });
  }

  /** Give every row its number, the labels that name it, and the buttons that it can use. */
  #number() {
    const rows = this.#rows;
    rows.forEach((row, index) => {
      const number = index + this.first;
      const name = `${this.noun} ${number}`;
      row.querySelector(".number").textContent = number;
      for (const input of inputsOf(row)) input.ariaLabel = `${name}, ${input.dataset.part}`;
      const limits = {
        up: index === 0,
        down: index === rows.length - 1,
        remove: rows.length <= this.least,
      };
      const labels = { up: `Move ${name} up`, down: `Move ${name} down`, remove: `Remove ${name}` };
      for (const button of row.querySelectorAll("[data-action]")) {
        button.disabled = limits[button.dataset.action];
        button.ariaLabel = labels[button.dataset.action];
      }
    });
  }

  #click(event) {
    const button = event.target.closest("[data-action]");
    if (button === null) return;
    const row = button.closest(".row");
    if (button.dataset.action === "remove") this.#remove(row);
    else this.#move(row, button.dataset.action === "up" ? -1 : 1, button);
  }

  #key(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const row = event.target.closest(".row");
    if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      this.#move(row, event.key === "ArrowUp" ? -1 : 1, event.target);
    } else if (event.key === "Enter" && event.target.dataset.part && !event.shiftKey) {
      event.preventDefault();
      this.#next(row, event.target);
    }
  }

  /** Go to the input behind `input`: in its row, in the next one, or in a new one. */
  #next(row, input) {
    const inputs = this.#rows.flatMap(inputsOf);
    const next = inputs[inputs.indexOf(input) + 1];
    if (next) next.focus();
    else this.add();
  }

  #move(row, step, focused) {
    const rows = this.#rows;
    const target = rows[rows.indexOf(row) + step];
    if (target === undefined) return;
    if (step < 0) target.before(row);
    else target.after(row);
    this.#number();
    // A row loses the focus when it moves; a button may have reached its end of the list.
    (focused.disabled ? row.querySelector("[data-action]:enabled") : focused).focus();
    this.#moved(row);
  }

  #moved(row) {
    this.changed();
    const rows = this.#rows;
    this.announce(`${this.#title(row)} is now ${rows.indexOf(row) + 1} of ${rows.length}.`);
  }

  #title(row) {
    const name = inputsOf(row)[0].value.trim();
    return name ? `“${name.slice(0, 40)}”` : `This ${this.noun.toLowerCase()}`;
  }

  #remove(row) {
    const before = this.items;
    const title = this.#title(row);
    const index = this.#rows.indexOf(row);
    row.remove();
    this.#number();
    this.changed();
    inputsOf(this.#rows[Math.min(index, this.#rows.length - 1)])[0].focus();
    this.announce(`${title} is removed.`, () => this.#restore(before));
  }

  #restore(items) {
    this.items = items;
    this.changed();
  }

  #paste(event) {
    const lines = event.clipboardData.getData("text/plain").split(/\r?\n/);
    const written = lines.filter((line) => line.trim());
    if (written.length < 2 || !event.target.dataset.part) return;
    event.preventDefault();
    const before = this.items;
    const row = event.target.closest(".row");
    const isBlank = inputsOf(row).every((input) => !input.value.trim());
    const room = this.most - before.length + (isBlank ? 1 : 0);
    const pasted = this.#read(written.slice(0, Math.max(room, 0)));
    row.after(...pasted.map((item) => this.#row(item)));
    if (isBlank && pasted.length > 0) row.remove();
    this.#number();
    this.changed();
    this.root.querySelector("textarea").focus();
    const left = written.length - pasted.length;
    const over = left ? ` ${left} more had no room: ${this.most} are the most.` : "";
    this.announce(`${pasted.length} added.${over}`, () => this.#restore(before));
  }

  /** Read pasted lines: "id: description", "id, tab, description", or only a description. */
  #read(lines) {
    const taken = new Set(this.items.map((item) => item.id));
    return lines.map((line) => {
      const plain = line.replace(BULLET, "").trim();
      if (!this.named) return { description: plain };
      const [, id, description] = NAMED.exec(plain) ?? [null, slug(plain), plain];
      const unique = free(id, taken);
      taken.add(unique);
      return { id: unique, description };
    });
  }

  #drag(event) {
    if (event.button !== 0 || event.target.closest(".grip") === null) return;
    event.preventDefault();
    const row = event.target.closest(".row");
    const home = row.nextSibling;
    const start = this.#rows.indexOf(row);
    const stop = new AbortController();
    const finish = (keep) => {
      stop.abort();
      row.classList.remove("dragged");
      if (!keep) this.root.insertBefore(row, home);
      this.#number();
      if (this.#rows.indexOf(row) !== start) this.#moved(row);
    };
    const listen = (target, type, handler) =>
      target.addEventListener(type, handler, { signal: stop.signal });
    row.classList.add("dragged");
    // The list captures the pointer: the row itself leaves the document when it moves.
    this.root.setPointerCapture(event.pointerId);
    listen(this.root, "pointermove", (move) => this.#follow(row, move.clientY));
    listen(this.root, "pointerup", () => finish(true));
    listen(this.root, "pointercancel", () => finish(false));
    listen(document, "keydown", (press) => {
      if (press.key === "Escape") finish(false);
    });
  }

  #follow(row, y) {
    const others = this.#rows.filter((other) => other !== row);
    const below = others.find((other) => y < middle(other)) ?? null;
    if (below !== row.nextSibling) this.root.insertBefore(row, below);
    if (y < SCROLL_MARGIN) window.scrollBy(0, -SCROLL_MARGIN / 4);
    if (y > window.innerHeight - SCROLL_MARGIN) window.scrollBy(0, SCROLL_MARGIN / 4);
  }
}

const inputsOf = (row) => [...row.querySelectorAll("[data-part]")];

function middle(element) {
  const { top, height } = element.getBoundingClientRect();
  return top + height / 2;
}

/** Return an id made of the words of `text`. */
function slug(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return words.join("_").slice(0, 32).replace(/_$/, "") || "option";
}

/** Return `id`, with a number behind it where it is taken. */
function free(id, taken) {
  let candidate = id;
  for (let number = 2; taken.has(candidate); number += 1) candidate = `${id}_${number}`;
  return candidate;
}
