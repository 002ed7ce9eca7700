// What a plan looks like: pure drawing from the JSON of `isocompute plan --json`.

import { h } from "../dom.js";
import { number, pair, percent, rate, value, whole } from "../format.js";
import { intervalBar, table, withCode } from "../widgets.js";

/** The allocation, what to expect of it, and what it rests on. */
export function answer(plan) {
  const { expected, cost } = plan;
  const costs = [
    cost.gpu_hours && `${number(cost.gpu_hours)} GPU-hours`,
    cost.seconds && `${number(cost.seconds / 3600)} h`,
    cost.money && `$${whole(Math.round(cost.money))}`,
    cost.tokens && `${number(cost.tokens)} tokens`,
  ].filter(Boolean);
  return [
    h("div", { class: "use" }, factors(plan)),
    h("p", {}, [`${whole(plan.compute)} rollouts, ${percent(plan.budget.used)} of the budget`, ...costs].join(" · ")),
    h(
      "p",
      { class: "expect" },
      "Expect ",
      h("b", {}, `${expected.metric} ${value(expected.value)}`),
      ` (${percent(expected.level)}: ${pair(expected.interval)})`,
    ),
    h("p", {}, plan.answer),
    h("p", { class: "muted" }, recipeLine(plan)),
    h("p", { class: "muted" }, lawLine(plan)),
  ];
}

function factors(plan) {
  const parts = [
    [plan.problems_per_batch, "problems"],
    [plan.rollouts_per_problem, "rollouts each"],
    [plan.update_steps, "updates"],
  ];
  return parts.map(([amount, name], i) => [
    i > 0 && h("i", { role: "img", "aria-label": "times" }, "×"),
    h("div", {}, h("b", {}, whole(amount)), h("span", {}, name)),
  ]);
}

function recipeLine(plan) {
  return [
    `Learning rate ${rate(plan.learning_rate)}`,
    `${plan.warmup_steps} warm-up steps`,
    `KL ${rate(plan.kl_coef)}`,
    `entropy ${rate(plan.entropy_coef)}`,
    `temperature ${plan.temperature}`,
  ].join(" · ");
}

function lawLine({ law, regime }) {
  return `Law: ${law.name} (${law.source}); limit: ${regime.regime ?? "none found"}: ${regime.reason}`;
}

/** The plan's warnings as a list. */
export function warnings(plan) {
  const items = plan.warnings.map((warning) => h("li", {}, withCode(warning.message)));
  return items.length ? h("ul", {}, items) : null;
}

/** The chosen allocation and the others, on one scale. */
export function alternatives(plan) {
  const all = [plan, ...plan.alternatives];
  const span = [
    Math.min(...all.map((option) => option.expected.interval[0])),
    Math.max(...all.map((option) => option.expected.interval[1])),
  ];
  const rows = all.map((option, i) => ({ ...option, class: i === 0 ? "chosen" : null }));
  const spread = (option) => {
    const { value: at, interval } = option.expected;
    const bar = intervalBar(at, interval, span, { chosen: option === rows[0] });
    return h("span", { class: "with-bar" }, bar, h("span", {}, pair(interval)));
  };
  const collapsed = all.some((option) => option.falls?.fallen);
  const collapses = ({ falls }) => {
    if (!falls) return "";
    const plain = Math.abs(falls.share - falls.fallen / falls.runs) < 0.005; // no run ended before
    return `${falls.fallen} of ${falls.runs}${plain ? "" : ` (${percent(falls.share)})`}`;
  };
  const remark = (option) => (option.cheapest ? "cheapest to run" : option.within_one_error ? "ties" : "");
  const columns = [
    ["Bp × n × M", (o) => `${o.problems_per_batch} × ${o.rollouts_per_problem} × ${o.update_steps}`],
    [plan.expected.metric, (o) => value(o.expected.value), "number"],
    [percent(plan.expected.level), spread],
    ...(plan.probability_best === null ? [] : [["P(best)", (o) => value(o.probability_best), "number"]]),
    ["loss", (o) => value(o.regret), "number"],
    ...(collapsed ? [["collapsed runs", collapses, "number"]] : []),
    ["", remark],
  ];
  return [h("h2", {}, "Alternatives"), table(columns, rows, { caption: "The chosen allocation and its alternatives" })];
}

/** Every setting with its reason. */
export function recipe(plan) {
  const columns = [
    ["setting", (line) => line.setting],
    ["value", (line) => String(line.value)],
    ["why", (line) => line.reason, "text"],
    ["source", (line) => line.source, "text"],
  ];
  return [h("h2", {}, "Recipe"), table(columns, plan.recipe_lines, { caption: "The recipe, line by line" })];
}

/** The allocation's compute in its law's unit. */
export function computeOf({ compute, cost, law }) {
  return { rollouts: compute, tokens: cost.tokens, gpu_hours: cost.gpu_hours }[law.unit] ?? null;
}
