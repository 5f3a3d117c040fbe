// The current request as code that reproduces it: the same state, question and answers, exactly.

import { format, python } from "./json.js";
import { MODEL, NAME, parts, request } from "./request.js";

const INDENT = "    ";

/** The languages, in the order of their tabs: a name, and the code for (draft, { base, key }). */
export const SNIPPETS = [
  { id: "curl", title: "curl", code: curl },
  { id: "boto3", title: "boto3", code: boto3 },
  { id: "ballot", title: "ballot", code: ballot },
  { id: "typesafe", title: "TypeSafe SDK", code: typesafe },
];

// `base` is the page's own address, without a slash at the end; `key` says whether the server
// wanted one. The key itself is never written: it would end up in a file or a shell's history.
const KEY_VARIABLE = "BALLOT_GATEWAY_KEY";

function curl(draft, { base, key }) {
  const { path, body } = request(draft);
  return [
    `curl -sS ${shellQuote(`${base}/${path}`)} \\`,
    "  -H 'content-type: application/json' \\",
    ...(key ? [`  -H "authorization: Bearer $${KEY_VARIABLE}" \\`] : []),
    // A quoted here-document takes every text as it is; valid JSON has no line like its last one.
    "  --data-binary @- <<'JSON'",
    format(body),
    "JSON",
  ].join("\n");
}

const shellQuote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function boto3(draft) {
  return [
    "import json",
    "import os",
    "",
    "import boto3",
    "",
    `request = ${python(request(draft).body)}`,
    "",
    'answer = boto3.client("sagemaker-runtime").invoke_endpoint(',
    '    EndpointName=os.environ["BALLOT_ENDPOINT"],',
    '    ContentType="application/json",',
    "    Body=json.dumps(request),",
    ")",
    'print(json.dumps(json.load(answer["Body"]), indent=2))',
  ].join("\n");
}

function ballot(draft, { base, key }) {
  const all = parts(draft);
  const access = key ? `, key=os.environ["${KEY_VARIABLE}"]` : "";
  const open = `with Ballot(url=${JSON.stringify(base)}${access}) as ballot:`;
  const imports = key ? ["import os", ""] : [];
  if (all.type === "choice") return ballotDecision(all, { open, imports });
  const kind = all.type === "noul" ? "Noul" : "Score";
  return [
    ...imports,
    `from ballot import Ballot, ${kind}`,
    "",
    open,
    "    answer = ballot.systemone(",
    `        ${argument("state", all.state, 2)},`,
    `        questions={${JSON.stringify(NAME)}: ${ballotQuestion(all)}},`,
    `        model=${JSON.stringify(MODEL)},`,
    "    )",
    `print(answer.answers[${JSON.stringify(NAME)}])`,
  ].join("\n");
}

function ballotDecision({ state, question, options, layout, orders }, { open, imports }) {
  const scoring = [
    layout && `layout=${layout}`,
    orders && `orders=${orders}`,
  ].filter(Boolean);
  return [
    ...imports,
    `from ballot import Ballot, Option${scoring.length ? ", Scoring" : ""}`,
    "",
    open,
    "    result = ballot.decide(",
    `        id=${JSON.stringify(NAME)},`,
    `        ${argument("state", state, 2)},`,
    `        question=${python(question)},`,
    "        options=[",
    ...options.map(([id, text]) => `            Option(${python(id)}, ${python(text)}),`),
    "        ],",
    ...(scoring.length ? [`        scoring=Scoring(${scoring.join(", ")}),`] : []),
    "    )",
    "for name, probability in result.by_option.items():",
    '    print(f"{probability:.6f}  {name}")',
  ].join("\n");
}

function ballotQuestion({ type, question, criteria }) {
  const asked = question === '""' ? [] : [`instructions=${python(question)}`];
  const described =
    type === "noul"
      ? Object.entries(JSON.parse(criteria ?? "{}")).map(
          ([side, text]) => `${side}=${JSON.stringify(text)}`,
        )
      : [argument("criteria", criteria, 3)];
  return callOf(type === "noul" ? "Noul" : "Score", [...asked, ...described]);
}

function typesafe(draft, { base, key }) {
  const all = parts(draft);
  const [kind, answers, figure] = {
    choice: ["Choice", "choices", "probabilities"],
    noul: ["Noul", "nouls", "noul"],
    score: ["Score", "scores", "score"],
  }[all.type];
  const named = JSON.stringify(NAME);
  const asked = all.question === '""' ? [] : [`instructions=${python(all.question)}`];
  const described = all.criteria === undefined ? [] : [argument("criteria", all.criteria, 3)];
  return [
    ...(key ? ["import os", ""] : []),
    `from typesafe_sdk import ${kind}, TypeSafeClient`,
    "",
    ...(all.layout || all.orders
      ? ["# System One has no layout and no orders: this is scored as the endpoint is set."]
      : []),
    "client = TypeSafeClient(",
    `    base_url=${JSON.stringify(base)},`,
    key
      ? `    api_key=os.environ["${KEY_VARIABLE}"],`
      : '    api_key="none",  # this gateway wants none',
    `    model=${JSON.stringify(MODEL)},`,
    "    timeout=70,  # seconds; the SDK's own 10 are short for a long state on a CPU",
    ")",
    "with client:",
    "    response = client.system_one(",
    `        ${argument("state", all.state, 2)},`,
    `        questions={${named}: ${callOf(kind, [...asked, ...described])}},`,
    "    )",
    `print(response.${answers}[${named}].${figure})`,
  ].join("\n");
}

/** Return a call with its arguments on lines of their own, inside two levels of indentation. */
function callOf(name, args) {
  const lines = args.map((item) => `${INDENT.repeat(3)}${item},`);
  return `${name}(\n${lines.join("\n")}\n${INDENT.repeat(2)})`;
}

/** Return `name=value`, its further lines indented by `levels`. */
function argument(name, json, levels) {
  return `${name}=${python(json).replaceAll("\n", `\n${INDENT.repeat(levels)}`)}`;
}
