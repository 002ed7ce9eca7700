// Plan: a budget and constraints in, an allocation and what to expect of it out, while the controls move.

import { ApiError, get } from "../api.js";
import { draw } from "../chart.js";
import { fill, h } from "../dom.js";
import { number } from "../format.js";
import { commandLine, downloads, failure, field, select, working } from "../widgets.js";
import { alternatives, answer, computeOf, recipe, warnings } from "./plan_answer.js";
import { constraintFields, inLabels, isOwn, lawField } from "./plan_controls.js";

const SUFFIX = { rollouts: "", tokens: "tok", gpu_hours: "h" };
const BAND_RANGE = 4; // the slider and the band end at so many times the law's range
const TRAINERS = ["verl", "trl", "openrlhf", "prime-rl", "nemo-rl", "skyrl"];
const STALE = 3000;

export async function render(root, { about, parameters, remember, signal }) {
  let query = { ...parameters, part: about.part, n: [parameters.n ?? []].flat() };
  let laws = [];
  let plan = null; // the last one
  let move = null; // what is marked on its chart
  let asked = 0; // requests so far: only the answer to the last one is drawn

  const places = {
    answer: h("section", { class: "answer card", "aria-live": "polite", "aria-label": "Answer" }),
    warnings: h("section", { class: "warnings", "aria-label": "Warnings" }),
    same: h("section", { class: "same" }),
    figure: h("figure", { class: "card" }),
    others: h("section", { class: "card", "aria-label": "Alternatives" }),
    recipe: h("section", { class: "card", "aria-label": "Recipe" }),
  };
  const budget = h("input", {
    type: "text",
    id: "budget",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": "budget-help",
    value: query.budget ?? "",
    oninput: () => change({ budget: budget.value.trim() }),
  });
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 1000,
    "aria-label": "Budget on a log scale",
    oninput: () => slide(),
  });
  const law = h("div");
  const constraints = h("div", { class: "fields" });
  const controls = h(
    "form",
    { class: "controls card", onsubmit: (event) => event.preventDefault(), "aria-label": "What you have" },
    field("Budget", budget),
    slider,
    h("p", { class: "help", id: "budget-help" }, "rollouts; or 3e9tok, 500h, $2000"),
    h(
      "details",
      { open: innerWidth > 860 },
      h("summary", {}, "Law and constraints"),
      h("div", { class: "fields" }, law, constraints),
    ),
  );
  const config = exportBox();
  fill(
    root,
    h("h1", {}, "Plan"),
    h(
      "div",
      { class: "split" },
      controls,
      h(
        "div",
        { class: "stack" },
        places.answer,
        places.warnings,
        places.same,
        config.element,
        places.figure,
        places.others,
        places.recipe,
      ),
    ),
  );

  const drawLaw = () => fill(law, lawField({ query, about, laws, change }));
  const drawConstraints = () => fill(constraints, constraintFields({ query, about, change }));

  function change(changes) {
    query = { ...query, ...changes };
    remember(changes);
    if ("law" in changes) {
      budget.value = "";
      drawConstraints();
    }
    return update({ budgetOnly: Object.keys(changes).join() === "budget" });
  }

  /** The slider's place as a budget in the law's unit. */
  function slide() {
    if (!plan) return;
    const [first, last] = plan.law.range;
    const amount = first * ((BAND_RANGE * last) / first) ** (slider.value / slider.max);
    budget.value = `${Number(amount.toPrecision(3))}${SUFFIX[plan.law.unit]}`;
    change({ budget: budget.value });
  }

  async function update({ budgetOnly = false } = {}) {
    const mine = ++asked;
    const fitting = setTimeout(() => mine === asked && !plan && fill(places.answer, working("Fitting the law…")), 200);
    root.setAttribute("aria-busy", "true");
    try {
      if (about.unplanned && isOwn(query) && !query.problems_per_batch) throw new ApiError(about.unplanned); // at once
      const { data, command, stale } = await get("plan", query, { signal });
      if (mine !== asked) return;
      plan = data;
      drawPlan(command);
      if (budgetOnly && move) mark();
      else drawBand(mine);
      if (stale) setTimeout(() => mine === asked && update(), STALE);
    } catch (error) {
      if (mine !== asked) return;
      plan = null;
      for (const place of Object.values(places)) if (place !== places.figure || !budgetOnly) fill(place);
      if (!budgetOnly) move = null;
      config.hide();
      fill(places.answer, failed(error));
    } finally {
      clearTimeout(fitting);
      if (mine === asked) root.removeAttribute("aria-busy");
    }
  }

  function drawPlan(command) {
    const [first, last] = plan.law.range;
    const at = computeOf(plan);
    if (at) slider.value = (slider.max * Math.log(at / first)) / Math.log((BAND_RANGE * last) / first);
    slider.setAttribute("aria-valuetext", `${number(plan.budget.amount)} ${plan.budget.unit}`);
    if (!query.budget) budget.value = `${plan.budget.amount}${SUFFIX[plan.budget.unit]}`;
    fill(places.answer, answer(plan));
    fill(places.warnings, warnings(plan));
    fill(places.others, alternatives(plan));
    fill(places.recipe, recipe(plan));
    config.show(command);
    fill(
      places.same,
      commandLine(command),
      downloads([
        ["JSON", "plan", query],
        ["CSV", "plan.csv", query],
        ["PNG", "plan/band/chart", { ...query, format: "png" }],
        ["SVG", "plan/band/chart", { ...query, format: "svg" }],
      ]),
    );
  }

  async function drawBand(mine) {
    const { figure } = places;
    try {
      const { data } = await get("plan/band/chart", query, { signal });
      if (mine !== asked) return;
      if (!figure.querySelector(".chart")) {
        fill(figure, h("h2", {}, data.title), h("div", { class: "chart" }), h("figcaption"));
      }
      figure.querySelector("figcaption").textContent = data.caption;
      move = await draw(figure.querySelector(".chart"), data.panels, { label: data.caption, wide: true });
      if (plan) mark();
    } catch (error) {
      if (error.name !== "AbortError" && mine === asked) fill(figure, failed(error));
    }
  }

  /** Move the mark of the plan along the band. */
  function mark() {
    const compute = computeOf(plan);
    const { value, interval } = plan.expected;
    if (compute) move("chosen", [{ compute, value, low: interval[0], high: interval[1] }]);
  }

  drawLaw();
  drawConstraints();
  update();
  get("laws", {}, { signal }).then(
    ({ data }) => {
      laws = data.laws;
      drawLaw();
    },
    () => {}, // "this study" is there without them
  );
  return (now) => {
    about = now;
    return update();
  };
}

/** An error in the words of this page's fields. */
function failed(error) {
  return failure(error instanceof ApiError ? new ApiError(inLabels(error.message)) : error);
}

/** The plan through `isocompute export`, which writes the config itself; there where there is a plan and a command. */
function exportBox() {
  let trainer = TRAINERS[0];
  let plan = null;
  const place = h("div");
  const show = (command) => {
    plan = command;
    element.hidden = !command;
    const whole = plan && `${plan} --json | isocompute export ${trainer} -`;
    fill(place, commandLine(whole, "the plan as a trainer's config"));
  };
  const choose = (name) => {
    trainer = name;
    show(plan);
  };
  const element = h(
    "details",
    { class: "export", hidden: true },
    h("summary", {}, "As your trainer's config"),
    h("div", { class: "fields row" }, select("Trainer", TRAINERS, trainer, choose)),
    place,
  );
  return { element, show, hide: () => show(null) };
}
