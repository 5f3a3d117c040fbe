// An answer of either schema as one view, and the view as elements.

import { h, icon } from "./dom.js";
import { NAME } from "./request.js";

// Under this share of the model's probability, it was about to write something else. The same
// threshold as in the demo.
const LOW_MASS = 0.5;
const LONG_NAME = 48;

/**
 * Return what there is to show of `json`, the answer to `draft`, or null where it is no result.
 *
 * `rows` are the answers in their order, `best` the index of the likeliest; figures that the
 * answer does not have are undefined.
 */
export function viewOf(draft, json) {
  return draft.type === "choice" ? nativeView(draft, json.result) : systemOneView(draft, json);
}

function nativeView(draft, result) {
  if (!Array.isArray(result?.probabilities)) return null;
  const rows = result.option_ids.map((id, index) => ({
    name: id,
    description: draft.options[index]?.description ?? "",
    probability: result.probabilities[index],
    logit: result.option_logits[index],
    orders: (result.orders ?? []).map((order) => order.probabilities[index]),
  }));
  const best = highest(result.probabilities);
  return {
    rows,
    best,
    ranked: true,
    verdict: rows[best].name,
    figure: percent(rows[best].probability),
    note: lead(rows, best),
    mass: result.allowed_token_mass,
    inputTokens: result.input_tokens,
    cachedTokens: result.cached_tokens,
    ordersAgree: result.orders_agree,
    promptVersion: result.prompt_version,
    promptHash: result.prompt_sha256,
    model: result.model,
    timing: result.timing,
  };
}

function systemOneView(draft, json) {
  const answer = json.answers?.[NAME];
  const read = { noul: noulView, score: scoreView }[answer?.type];
  if (read === undefined) return null;
  return {
    ...read(draft, answer),
    ranked: false,
    mass: answer.x_allowed_token_mass,
    inputTokens: answer.x_input_tokens ?? json.usage?.input_tokens,
    cachedTokens: answer.x_cached_tokens,
    ordersAgree: answer.x_orders_agree,
    promptVersion: answer.x_prompt_version,
    promptHash: answer.x_prompt_sha256,
    model: json.x_model ?? { file: json.model },
    timing: json.x_timing,
  };
}

function noulView(draft, answer) {
  const shares = [answer.noul, 1 - answer.noul];
  const rows = [
    { name: "Yes", description: draft.yes },
    { name: "No", description: draft.no },
  ].map((row, index) => withScores(row, shares[index], answer.x_option_logits?.[index]));
  const best = highest(shares);
  return { rows, best, verdict: rows[best].name, figure: percent(shares[best]), note: "" };
}

function scoreView(draft, answer) {
  const levels = draft.levels.map((_, index) => String(index));
  const shares = levels.map((level) => answer.probabilities[level]);
  const rows = levels.map((level, index) =>
    withScores(
      { name: level, description: answer.legend[level] },
      shares[index],
      answer.x_option_logits?.[index],
    ),
  );
  const best = highest(shares);
  const top = levels.length - 1;
  return {
    rows,
    best,
    verdict: `${answer.score.toFixed(2)} of ${top}`,
    figure: "",
    note: `Confidence ${answer.confidence.toFixed(2)}; likeliest level ${best}`,
  };
}

const withScores = (row, probability, logit) => ({ ...row, probability, logit, orders: [] });

const highest = (values) => values.indexOf(Math.max(...values));

function lead(rows, best) {
  const others = rows.filter((_, index) => index !== best);
  const second = others.reduce((top, row) => (row.probability > top.probability ? row : top));
  const points = (rows[best].probability - second.probability) * 100;
  return `${points.toFixed(1)} points ahead of ${second.name}`;
}

/** Return a share as a percentage that is never rounded to nothing, nor to all. */
export function percent(share) {
  if (share > 0 && share < 0.00005) return "< 0.01 %";
  if (share < 1 && share > 0.99995) return "> 99.99 %";
  return `${(share * 100).toFixed(2)} %`;
}

/** Return one line that says what came out. */
export function summary({ verdict: name, figure }) {
  const short = name.length > LONG_NAME ? `${name.slice(0, LONG_NAME)}…` : name;
  return [short, figure].filter(Boolean).join(", ");
}

/** Return the elements that show `view`; `raw` is the answer as text, `seconds` the round trip. */
export function figures(view, { raw, seconds }) {
  return [
    verdict(view),
    view.ordersAgree === undefined ? null : ordersNote(view.ordersAgree),
    bars(view),
    massNote(view.mass),
    facts(view, seconds),
    view.rows[0].orders.length ? bothOrders(view.rows) : null,
    h(
      "details",
      { class: "fold" },
      h("summary", {}, "Raw JSON"),
      h("pre", { role: "region", tabIndex: 0, ariaLabel: "Raw JSON", textContent: raw }),
    ),
  ].filter((element) => element !== null);
}

function verdict({ verdict: name, figure, note }) {
  return h(
    "div",
    { class: "verdict" },
    h("p", { class: "winner" }, h("strong", {}, name), h("span", {}, figure)),
    h("p", { class: "note" }, note),
  );
}

function ordersNote(agree) {
  return agree
    ? h("p", { class: "remark" }, icon("check"), "Both option orders agree.")
    : h(
        "p",
        { class: "remark warning" },
        "The two option orders disagree: the model leans on the order more than on the state.",
      );
}

function massNote(mass) {
  if (mass === undefined || mass >= LOW_MASS) return null;
  return h(
    "p",
    { class: "remark warning" },
    `Only ${percent(mass)} of the model’s probability is on the allowed answers: it was about to ` +
      "write something else. Take these figures with care.",
  );
}

function bars(view) {
  const list = h("ol", { class: "bars", tabIndex: 0, ariaLabel: "Probabilities" });
  const best = view.rows[view.best];
  const fill = (rows) => list.replaceChildren(...rows.map((row) => bar(row, row === best)));
  fill(view.rows);
  const titles = ["Probability", "Logit"].map((title) => h("span", {}, title));
  const head = h("div", { class: "bars-head" }, order(view, fill), ...titles);
  return h("div", { class: "chart" }, head, list);
}

/** Return the switch between the order of the request and that of the probabilities. */
function order(view, fill) {
  if (!view.ranked || view.rows.length < 3) return h("span");
  const sorted = view.rows.toSorted((one, other) => other.probability - one.probability);
  const shape = { type: "button", class: "link", ariaPressed: "false" };
  const button = h("button", shape, "Likeliest first");
  button.addEventListener("click", () => {
    const ranked = button.ariaPressed === "false";
    button.ariaPressed = String(ranked);
    fill(ranked ? sorted : view.rows);
  });
  return button;
}

function bar({ name, description, probability, logit }, isBest) {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${probability * 100}%`;
  const meter = h(
    "div",
    {
      class: "meter",
      role: "meter",
      aria: {
        label: name,
        valuemin: "0",
        valuemax: "1",
        valuenow: String(probability),
        valuetext: percent(probability),
      },
    },
    fill,
  );
  return h(
    "li",
    { class: isBest ? "best" : "", data: { option: name } },
    h("span", { class: "name" }, name, isBest ? h("span", { class: "tag" }, "top") : null),
    h("span", { class: "probability" }, percent(probability)),
    h("span", { class: "logit" }, logit === undefined ? "–" : logit.toFixed(2)),
    meter,
    description && description !== name ? h("span", { class: "note" }, description) : null,
  );
}

function facts(view, seconds) {
  const { model, timing } = view;
  const entries = [
    ["Allowed token mass", view.mass === undefined ? undefined : percent(view.mass), ""],
    ["Input tokens", tokens(view), ""],
    ["Decode", milliseconds(timing?.forward_seconds), ""],
    ["Queue", milliseconds(timing?.queue_seconds), ""],
    ["Round trip", milliseconds(seconds), "measured by this page"],
    ["Prompt", view.promptVersion, view.promptHash && `SHA-256 ${view.promptHash}`],
    ["Model", model.file, model.sha256 && `SHA-256 ${model.sha256}`],
    ["Runs as", runtime(model), ""],
  ];
  return h(
    "dl",
    { class: "facts" },
    ...entries
      .filter(([, value]) => value !== undefined)
      .map(([name, value, title]) =>
        h("div", { title: title ?? "" }, h("dt", {}, name), h("dd", {}, value)),
      ),
  );
}

function tokens({ inputTokens, cachedTokens }) {
  if (inputTokens === undefined || cachedTokens === undefined) return inputTokens;
  return `${inputTokens}, ${cachedTokens} cached`;
}

const milliseconds = (seconds) =>
  seconds === undefined ? undefined : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;

function runtime({ architecture, quantization, threads, gpu_layers: layers }) {
  if (architecture === undefined) return undefined;
  const gpu = layers ? `, ${layers} GPU layers` : "";
  const cpu = `${threads} ${threads === 1 ? "thread" : "threads"}`;
  return `${architecture} ${quantization}, ${cpu}${gpu}`;
}

function bothOrders(rows) {
  const cell = (share) => h("td", {}, percent(share));
  const heading = (text) => h("th", { scope: "col" }, text);
  return h(
    "details",
    { class: "fold" },
    h("summary", {}, "Both orders"),
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heading("Option"), heading("As listed"), heading("Reversed"))),
      h(
        "tbody",
        {},
        ...rows.map(({ name, orders }) =>
          h("tr", {}, h("th", { scope: "row" }, name), ...orders.map(cell)),
        ),
      ),
    ),
  );
}
