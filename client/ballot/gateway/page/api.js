// One request to the server, and every way in which it can go wrong, as one kind of problem.

import { fieldOfLocation, fieldOfPath } from "./request.js";

const ADVICE = {
  busy: "Others are being scored. Wait a little, then try again.",
  deadline_exceeded: "The model could not answer in time. Wait a little, then try again.",
  loading: "The model is still loading. Try again when it is there.",
  draining: "This server is shutting down; another one may answer.",
  worker_failed: "Try again once the endpoint has replaced the container.",
  scoring_failed: "Try again. If it fails again, look for the request id in the endpoint’s log.",
  internal_error: "Try again. If it fails again, look for the request id in the endpoint’s log.",
  body_too_large: "Shorten the state.",
  too_many_tokens: "Shorten the state, the question or the descriptions.",
  too_many_options: "Decide in two steps: a group first, then within it.",
  too_deep: "Flatten the state, or send it as text.",
  duplicate_key: "Give each key of the JSON state once.",
  invalid_number: "Write that number of the JSON state as a string.",
  invalid_string: "Half of a character is in a text: write it anew.",
};

const ADVICE_BY_STATUS = {
  403: "Check the key, and what the gateway’s AWS credentials may call.",
  404: "Check what the gateway was started for.",
  413: "Shorten the state, the question or the descriptions.",
  429: "Wait a little, then try again.",
  502: "Check the endpoint that the gateway calls: `ballot doctor` says what is wrong with it.",
  503: "Wait a little, then try again.",
  504: "The endpoint took too long. Try again, or shorten the state.",
  529: "Wait a little, then try again.",
};

/**
 * A request that got no result. `field` is the page's field that is at fault, or null;
 * `retryAfter` is in seconds, or null; `canRetry` says whether the same request may succeed later.
 */
export class Problem extends Error {
  constructor({ message, title, advice, status = 0, code = null, field = null, ...rest }) {
    super(message);
    this.title = title;
    this.advice = advice ?? ADVICE[code] ?? ADVICE_BY_STATUS[status] ?? null;
    this.status = status;
    this.code = code;
    this.field = field;
    this.requestId = rest.requestId ?? null;
    this.retryAfter = rest.retryAfter ?? null;
    this.canRetry = rest.canRetry ?? false;
  }
}

// What can stand in a header; no key at all is sent as none.
const KEY = /^[\x21-\x7e]*$/;

/**
 * Send `body` to `path`; without a body it is a GET. Return the answer's text and JSON, and the
 * seconds it took.
 *
 * @throws {Problem} for every failure but that `signal` was aborted, which stays an AbortError.
 */
export async function call({ path, body, key, signal }) {
  if (!KEY.test(key)) {
    throw new Problem({ message: "A key is printable ASCII without spaces.", field: "key" });
  }
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key) headers.authorization = `Bearer ${key}`;
  const started = performance.now();
  const { response, text } = await exchange(path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body,
    signal,
    cache: "no-store",
  });
  const seconds = (performance.now() - started) / 1000;
  const json = parsed(text);
  if (!response.ok) throw refusal(response, json, text);
  if (json === undefined) throw unreadable(response);
  return { text, json, seconds };
}

async function exchange(path, options) {
  try {
    const response = await fetch(new URL(path, document.baseURI), options);
    return { response, text: await response.text() };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "The gateway does not answer",
      message: `Nothing was received from ${location.host}.`,
      advice: "Check that `ballot gateway` is running there, then try again.",
      canRetry: true,
    });
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Return the problem of an answer that is a success and not a result. */
export function unreadable({ status }) {
  return new Problem({
    title: "The answer is not a result",
    message: "What came back is not what the endpoint’s contract promises.",
    advice: "Check that the gateway is asked for a decision endpoint.",
    status,
  });
}

function refusal(response, json, text) {
  const { status, headers } = response;
  const told = nativeError(json) ?? systemOneError(json) ?? { message: plain(status, text) };
  const retryAfter = Number.parseInt(headers.get("retry-after") ?? "", 10);
  return new Problem({
    ...told,
    title: titleOf(status),
    status,
    requestId: told.requestId ?? headers.get("x-request-id"),
    retryAfter: Number.isNaN(retryAfter) ? null : retryAfter,
    canRetry: told.canRetry ?? (status === 408 || status === 429 || status >= 500),
  });
}

function nativeError(json) {
  if (typeof json?.error !== "string") return null;
  const { error, code, field, request_id: requestId, retryable } = json;
  return {
    message: withoutPath(error, field),
    code,
    field: fieldOfPath(field),
    requestId,
    canRetry: retryable,
  };
}

function systemOneError(json) {
  const { detail, x_request_id: requestId, x_retryable: canRetry } = json ?? {};
  if (Array.isArray(detail) && detail.length > 0) {
    const [{ loc = [], msg }] = detail;
    return { message: sentence(String(msg)), field: fieldOfLocation(loc), requestId, canRetry };
  }
  if (typeof detail?.message !== "string") return null;
  return { message: sentence(detail.message), code: detail.error_type, requestId, canRetry };
}

/** At its own input, a message needs no path: "decision.question is empty" says "This is empty". */
function withoutPath(message, path) {
  return path && fieldOfPath(path) && message.startsWith(`${path} `)
    ? sentence(`This${message.slice(path.length)}`)
    : sentence(message);
}

const sentence = (text) => `${text[0]?.toUpperCase() ?? ""}${text.slice(1).replace(/\.$/, "")}.`;
const plain = (status, text) => `HTTP ${status}: ${text.trim().slice(0, 200) || "no text"}`;

function titleOf(status) {
  if (status === 403) return "Access denied";
  if (status === 429 || status === 503 || status === 529) return "Busy";
  return status >= 500 ? "The endpoint failed" : "The request was refused";
}
