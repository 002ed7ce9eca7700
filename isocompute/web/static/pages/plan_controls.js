// The controls of a plan: what `isocompute plan` takes, as fields that report what they are changed to.

import { fill, h } from "../dom.js";
import { field, metricSelect, select } from "../widgets.js";

const REWARD = /(avg|best|worst)@|reward|acc|score|value/;
const COUNTS = [
  ["problems", "problems in your set (D)"],
  ["gpus", "GPUs"],
  ["max_batch", "largest batch"],
  ["min_updates", "fewest updates"],
];
const STABLE = [
  ["stable_low", "from"],
  ["stable_high", "to"],
];
const COSTS = [
  ["rollouts_per_second", "rollouts a second"],
  ["response_tokens", "tokens a response"],
  ["price_per_gpu_hour", "price of a GPU-hour"],
];

const FIXED_BP = "Bp, problems";
const FAR = "plan far outside the law's range";
/** What the API calls the fields, where that is no plain word, and what they are called here. */
const LABELS = Object.fromEntries([
  ...[...COUNTS, ...COSTS].filter(([name]) => name.includes("_")),
  ...STABLE.map(([name, label]) => [name, `Stable Bp, ${label}`]),
  ["problems_per_batch", FIXED_BP],
  ["extrapolate=true", FAR],
]);

/** A message of the API with the fields named as on this page; commands stay as they are. */
export function inLabels(text) {
  const label = (name) => (LABELS[name] ? `“${LABELS[name]}”` : name);
  return text
    .split("`")
    .map((part, i) => (i % 2 ? part : part.replace(/\b[a-z]+(_[a-z]+)+\b|\bextrapolate=true\b/g, label)))
    .join("`");
}

/** Which law: this study's, or a published one. */
export function lawField({ query, about, laws, change }) {
  const names = [["study", `this study (${about.runs.length})`], ...laws.map(({ name }) => name)];
  if (!isOwn(query) && laws.length === 0) names.push(query.law); // the others are still on their way
  return select("Law", names, query.law ?? "study", (law) => change({ law, budget: null, metric: null }));
}

export function isOwn(query) {
  return query.law === undefined || query.law === "study";
}

/** Everything else. */
export function constraintFields({ query, about, change }) {
  const own = isOwn(query);
  const rewards = { ...about, metrics: about.metrics.filter(({ metric }) => REWARD.test(metric)) };
  const metric = (name) => change({ metric: name });
  const number = (name, label, step = "1") =>
    field(
      label,
      h("input", {
        type: "number",
        min: step === "1" ? 1 : 0,
        step,
        value: query[name] ?? "",
        placeholder: "any",
        oninput: (event) => change({ [name]: event.target.value }),
      }),
    );
  const allowed = h("input", {
    type: "text",
    value: query.n.join(", "),
    placeholder: "any, or 8, 16, 32",
    inputmode: "numeric",
    onchange: (event) => change({ n: event.target.value.split(/[\s,]+/).filter(Boolean) }),
  });
  const far = h("input", {
    type: "checkbox",
    checked: Boolean(query.extrapolate),
    onchange: (event) => change({ extrapolate: event.target.checked }),
  });
  const more = [
    COUNTS.map(([name, label]) => number(name, label)),
    h(
      "fieldset",
      {},
      h("legend", {}, "Stable Bp"),
      STABLE.map(([name, label]) => number(name, label)),
    ),
    COSTS.map(([name, label]) => number(name, label, "any")),
    h("label", { class: "check" }, far, FAR),
  ];
  const used = [...COUNTS, ...STABLE, ...COSTS, ["extrapolate"]].some(([name]) => query[name]);
  return [
    own
      ? metricSelect(rewards, query.metric, metric)
      : select("Metric", [["", "the law's own"], "avg@4", "best@4", "worst@4"], query.metric, metric),
    select("Problems are", [["", own ? "unknown" : "as the law's"], "easy", "hard"], query.difficulty, (difficulty) =>
      change({ difficulty }),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Fix"),
      number("problems_per_batch", FIXED_BP),
      number("batch", "B = Bp · n"),
    ),
    field("Allowed n", allowed),
    h(
      "details",
      { open: used },
      h("summary", {}, "More constraints and costs"),
      fill(h("div", { class: "fields" }), more),
    ),
  ];
}
