// From a draft to the request it stands for, and from a path in that request back to its field.

import { array, fault, object, string } from "./json.js";

// The one question of a request needs a name; no name ever reaches the model.
export const NAME = "decision";
export const MODEL = "jev-latest";

/** A fault that the page itself finds, at a field of the draft. */
export class FieldFault extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/**
 * Return the parts of the request as JSON texts, undefined where the draft has none.
 *
 * A choice is a native decision. Yes or no and levels are questions of System One, which is where
 * these two are defined.
 *
 * @throws {FieldFault} the state is not the JSON it should be.
 */
export function parts(draft) {
  return {
    type: draft.type,
    state: stateText(draft),
    question: string(draft.question),
    options: draft.options.map(({ id, description }) => [string(id), string(description)]),
    criteria: criteria(draft),
    layout: draft.layout ? string(draft.layout) : undefined,
    orders: draft.orders || undefined,
  };
}

/** Return the request: its path on the server, relative to the page, and its body. */
export function request(draft) {
  const all = parts(draft);
  if (all.type === "choice") return { path: "invocations", body: nativeBody(all) };
  return { path: "v1/systemone", body: systemOneBody(all) };
}

function nativeBody({ state, question, options, layout, orders }) {
  const described = options.map(([id, description]) =>
    object([
      ["id", id],
      ["description", description],
    ]),
  );
  // The state comes first, so that SageMaker's prefix-aware routing finds the instance that has it.
  const decision = object([
    ["state", state],
    ["id", string(NAME)],
    ["question", question],
    ["options", array(described)],
  ]);
  const scoring = object([
    ["layout", layout],
    ["orders", orders],
  ]);
  return object([
    ["decision", decision],
    ["scoring", scoring === "{}" ? undefined : scoring],
  ]);
}

function systemOneBody({ type, state, question, criteria: described }) {
  const asked = object([
    ["type", string(type)],
    ["instructions", question === '""' ? undefined : question],
    ["criteria", described],
  ]);
  return object([
    ["state", state],
    ["questions", object([[NAME, asked]])],
    ["model", string(MODEL)],
  ]);
}

function stateText(draft) {
  if (!draft.stateIsJson) return string(draft.state);
  const wrong = fault(draft.state);
  if (wrong !== null) throw new FieldFault("state", wrong);
  return draft.state.trim();
}

/** Return what System One calls the criteria of the question, as JSON text. */
function criteria(draft) {
  if (draft.type === "choice") {
    return object(draft.options.map(({ id, description }) => [id, string(description)]));
  }
  if (draft.type === "score") {
    return array(draft.levels.map(({ description }) => string(description)));
  }
  const sides = object([
    ["true", draft.yes ? string(draft.yes) : undefined],
    ["false", draft.no ? string(draft.no) : undefined],
  ]);
  return sides === "{}" ? undefined : sides;
}

const NATIVE_FIELD = /^decision\.(state|question|options)(?:\[(\d+)\](?:\.(id|description))?)?/;

/** Return the field of the page at `path` in a native request, or null. */
export function fieldOfPath(path) {
  if (path === "scoring.layout" || path === "scoring.orders") return path.slice("scoring.".length);
  const match = NATIVE_FIELD.exec(path ?? "");
  if (match === null) return null;
  const [, name, index, part] = match;
  return index === undefined ? name : `${name}[${index}].${part ?? "id"}`;
}

/** Return the field of the page at `loc` (["body", ...]) in a System One request, or null. */
export function fieldOfLocation(loc) {
  const [, root, , ...inside] = loc;
  if (root === "state") return "state";
  if (root !== "questions") return null;
  // The question's type may stand between its name and its fields.
  const [name, place] = inside[0] in SYSTEM_ONE_TYPES ? inside.slice(1) : inside;
  if (name === "instructions" || name === undefined) return "question";
  if (name !== "criteria") return null;
  if (place === "true") return "yes";
  if (place === "false") return "no";
  return place === undefined ? "levels" : `levels[${place}].description`;
}

const SYSTEM_ONE_TYPES = { noul: true, score: true };
