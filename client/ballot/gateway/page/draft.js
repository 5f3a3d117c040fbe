// What the user has typed, and where it is kept.
//
// Prompts can be sensitive, so they go nowhere unasked:
// - the draft is kept in sessionStorage, so that a reload loses nothing; another tab cannot read
//   it, and it ends with the tab;
// - results and the key are in memory only;
// - a link carries the draft in its hash, which browsers do not send to servers, and only when one
//   is asked for; a page opened from such a link takes the hash out of its address at once, and
//   scores nothing until told to.

const STORE = "ballot-draft";
const HASH = "#request=";

export const TYPES = ["choice", "noul", "score"];
export const LAYOUTS = ["evidence_first", "criterion_first"];
export const ORDERS = ["1", "2"];
export const MAX_OPTIONS = 255;
export const MAX_LEVELS = 10;

/** Return a draft with nothing in it but room for the fewest answers. */
export function emptyDraft() {
  return {
    type: "choice",
    stateIsJson: false,
    state: "",
    question: "",
    options: [
      { id: "", description: "" },
      { id: "", description: "" },
    ],
    yes: "",
    no: "",
    levels: [{ description: "" }, { description: "" }],
    layout: "",
    orders: "",
  };
}

/** Return `value`, from a store or a link, as a draft; whatever is not of one is left out. */
export function asDraft(value) {
  const draft = emptyDraft();
  if (value === null || typeof value !== "object") return draft;
  for (const name of ["state", "question", "yes", "no"]) draft[name] = text(value[name]);
  draft.stateIsJson = value.stateIsJson === true;
  draft.type = oneOf(TYPES, value.type) ?? draft.type;
  draft.layout = oneOf(LAYOUTS, value.layout) ?? draft.layout;
  draft.orders = oneOf(ORDERS, value.orders) ?? draft.orders;
  draft.options = items(value.options, MAX_OPTIONS, draft.options, (item) => ({
    id: text(item?.id),
    description: text(item?.description),
  }));
  draft.levels = items(value.levels, MAX_LEVELS, draft.levels, (item) => ({
    description: text(item?.description),
  }));
  return draft;
}

const text = (value) => (typeof value === "string" ? value : "");
const oneOf = (allowed, value) => allowed.find((item) => item === value);
const items = (value, most, fallback, read) =>
  Array.isArray(value) && value.length > 0 ? value.slice(0, most).map(read) : fallback;

/** Keep `draft` for a reload of this tab. */
export function keep(draft) {
  try {
    sessionStorage.setItem(STORE, JSON.stringify(draft));
  } catch {
    // Storage is full or switched off: a reload will lose the draft, and nothing else changes.
  }
}

/** Return the draft kept in this tab, or null. */
export const kept = () => parse(() => sessionStorage.getItem(STORE));

/** Whether the page's address is a link with a draft. */
export const isLinked = () => location.hash.startsWith(HASH);

/** Return the draft of the page's address, or null where it is cut off; take it out of there. */
export function linked() {
  const hash = location.hash.slice(HASH.length);
  history.replaceState(null, "", location.pathname + location.search);
  return parse(() => decode(hash));
}

function parse(read) {
  try {
    const value = JSON.parse(read());
    return value === null ? null : asDraft(value);
  } catch {
    return null;
  }
}

/** Return a link that opens the page with `draft`. */
export function link(draft) {
  return new URL(HASH + encode(JSON.stringify(draft)), location.href).href;
}

function encode(value) {
  const bytes = new TextEncoder().encode(value);
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function decode(value) {
  const binary = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder().decode(Uint8Array.from(binary, (byte) => byte.charCodeAt(0)));
}
