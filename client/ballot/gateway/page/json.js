// JSON as text. What is typed is sent as it is typed: a round trip through JavaScript's values
// would change long integers, 1.0 and the order of number-like keys, and so the prompt.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const INDENT = "  ";

export const string = JSON.stringify;
export const array = (items) => `[${items.join(",")}]`;

/** Return the text of an object with `entries` of [key, JSON text], those of undefined left out. */
export function object(entries) {
  const present = entries.filter(([, text]) => text !== undefined);
  return `{${present.map(([key, text]) => `${string(key)}:${text}`).join(",")}}`;
}

/** Return what is wrong with `text` as JSON, or null. */
export function fault(text) {
  if (!text.trim()) return "There is no JSON here yet.";
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return `This is not JSON: ${error.message.replace(/^JSON\.parse: /, "")}.`;
  }
}

/**
 * Return the JSON text `text`, which must be valid, indented: what fits into `width` columns stays
 * on one line. `scalar` translates each string, number and word.
 */
export function format(text, { width = 80, scalar = (token) => token } = {}) {
  const tokens = (text.match(TOKEN) ?? []).map((token) =>
    "{}[],:".includes(token) ? token : scalar(token),
  );
  const spans = flatSpans(tokens);
  let line = "";
  const lines = [];
  let depth = 0;
  let flatUntil = -1;
  const breakLine = () => {
    lines.push(line);
    line = INDENT.repeat(depth);
  };
  tokens.forEach((token, index) => {
    const flat = index <= flatUntil;
    if (flat || !"{}[],".includes(token)) {
      line += token === ":" || token === "," ? `${token} ` : token;
    } else if (token === ",") {
      line += token;
      breakLine();
    } else if (spans.has(index)) {
      const span = spans.get(index);
      line += token;
      if (line.length + span.length <= width || span.end === index + 1) flatUntil = span.end;
      else {
        depth += 1;
        breakLine();
      }
    } else {
      depth -= 1;
      breakLine();
      line += token;
    }
  });
  return [...lines, line].join("\n");
}

/** Return, for the index of each opening bracket, where it ends and how long it is on one line. */
function flatSpans(tokens) {
  const spans = new Map();
  const open = [];
  let length = 0;
  tokens.forEach((token, index) => {
    length += token.length + (token === ":" || token === "," ? 1 : 0);
    if (token === "{" || token === "[") open.push({ index, length });
    if (token === "}" || token === "]") {
      const start = open.pop();
      spans.set(start.index, { end: index, length: length - start.length });
    }
  });
  return spans;
}

const PYTHON_WORDS = { true: "True", false: "False", null: "None" };

/** Return a Python expression for the JSON text `text`: numbers keep every digit. */
export function python(text, options = {}) {
  // JavaScript's string literals in JSON are Python's too, except for escaped surrogate pairs and
  // slashes, which the round trip resolves.
  const scalar = (token) =>
    token.startsWith('"') ? string(JSON.parse(token)) : (PYTHON_WORDS[token] ?? token);
  return format(text, { ...options, scalar });
}
