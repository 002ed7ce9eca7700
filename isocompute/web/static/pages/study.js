// Study: how far the cells are, the first figures that can be drawn, every other figure by name, and the runs.

import { ApiError, get, search } from "../api.js";
import { draw } from "../chart.js";
import { fill, h } from "../dom.js";
import { number } from "../format.js";
import { chip, commandLine, downloads, failure, metricSelect, notice, select, working } from "../widgets.js";
import { canDraw, figureList, inOrder, needsOf } from "./study_figures.js";
import { runsTable } from "./study_runs.js";

const STATES = ["finished", "running", "stopped", "waiting", "failed"];
const OVERVIEW = 2; // figures

export async function render(root, { about, parameters, go, signal }) {
  const {
    data: { figures },
  } = await get("figures", {}, { signal });
  let known = about;
  const query = () => ({ part: known.part, metric: parameters.metric, unit: parameters.unit });
  const progress = h(
    "section",
    { class: "card progress", "aria-label": "Progress", hidden: !about.study },
    h("progress", { "aria-label": "rollouts done" }),
  );
  const shown = h("div", { class: parameters.figure ? "stack" : "stack pair" });
  const table = h("section", { class: "card", "aria-label": "Runs" });
  const runs = runsTable(table, { query, signal });
  const link = (changes) => `/study${search({ ...query(), figure: parameters.figure, ...changes })}`;
  const list = figureList(figures, { link: (figure) => link({ figure }), chosen: parameters.figure ?? null });
  const needs = () => needsOf(known.runs, query());
  const reading = h(
    "div",
    { class: "fields row" },
    metricSelect(known, parameters.metric, (metric) => go(link({ metric }))),
    select(
      "Compute in",
      [["", "what all runs count"], "rollouts", "tokens", ["gpu_hours", "GPU-hours"], "steps"],
      parameters.unit,
      (unit) => go(link({ unit })),
    ),
  );
  fill(
    root,
    h("h1", {}, "Study"),
    h(
      "div",
      { class: "split" },
      h(
        "div",
        { class: "stack" },
        h("section", { class: "card", "aria-label": "How to read it" }, reading),
        list.element,
      ),
      h("div", { class: "stack" }, progress, shown, table),
    ),
  );

  async function drawProgress() {
    const {
      data: { status },
      command,
    } = await get("pulse", { part: known.part }, { signal });
    progress.hidden = status === null;
    if (status === null) return;
    const share = status.total_rollouts ? status.rollouts / status.total_rollouts : 0;
    fill(
      progress,
      h("progress", { max: 1, value: share, "aria-label": "rollouts done" }),
      h(
        "p",
        {},
        `${number(status.rollouts)} of ${number(status.total_rollouts)} rollouts (${(100 * share).toFixed(1)}%) · `,
        STATES.filter((state) => status[state]).map((state) =>
          h("span", { class: "count" }, chip(state), ` ${status[state]} `),
        ),
      ),
      status.errors.slice(0, 5).map(({ cell, error }) => notice(`${cell}: ${error.split("\n")[0]}`, "bad")),
      commandLine(command),
    );
  }

  /** One figure with its sentence, its command and its files, in a place of its own. */
  async function drawFigure(card, name) {
    try {
      const path = `figures/${name}/chart`;
      const { data, command, stale } = await get(path, query(), { signal });
      needs().set(name, data.needs ?? null);
      card.classList.remove("waiting");
      if (data.panels.length === 0) {
        fill(card, h("h2", {}, data.title), notice(`This figure needs: ${data.needs}`, "empty"));
      } else {
        const place = card.querySelector(".chart") ?? h("div");
        fill(
          card,
          h("h2", {}, data.title, " ", h("small", {}, data.source)),
          place,
          h("figcaption", {}, data.caption),
          commandLine(command),
          downloads([
            ...["PNG", "SVG", "CSV"].map((kind) => [kind, path, { ...query(), format: kind.toLowerCase() }]),
            ["JSON", `figures/${name}`, query()],
          ]),
        );
        await draw(place, data.panels, { label: `${data.title}: ${data.caption}`, wide: data.panels.length === 1 });
      }
      if (stale) setTimeout(() => card.isConnected && drawFigure(card, name), 3000);
    } catch (error) {
      const message = failure(error);
      card.classList.remove("waiting");
      fill(card, h("h2", {}, figures.find((figure) => figure.name === name)?.title ?? name), message);
    }
  }

  /** The first figures that can be drawn, each in a card; cards that none is left for are taken away. */
  async function drawOverview(cards) {
    const [free, drawing] = [[...cards], []];
    for (const name of inOrder(figures)) {
      if (!free.length) break;
      if (await canDraw(name, needs(), query(), { signal })) drawing.push(drawFigure(free.shift(), name));
    }
    for (const card of free) card.remove();
    await Promise.all(drawing);
    if (!drawing.length)
      shown.append(notice("No figure can be drawn from these runs yet; the list of figures says what each needs."));
  }

  async function drawShown() {
    if (known.empty) {
      fill(shown, notice(known.empty, "empty"));
    } else {
      const count = parameters.figure ? 1 : OVERVIEW;
      const ns = new Set(known.runs.map((run) => run.rollouts_per_problem));
      const hints = [
        known.runs.length === 1 &&
          "This study has one run. n*(C) needs two n over the same compute: run another with `isocompute study run SPEC.toml`, or start the app on the folder above.",
        known.runs.length > 1 &&
          ns.size === 1 &&
          !ns.has(null) &&
          `All runs have n = ${[...ns][0]}. n*(C) needs at least two n over the same compute.`,
      ].filter(Boolean);
      const lacking = known.metrics.find(
        ({ metric, runs }) => metric === parameters.metric && runs < known.runs.length,
      );
      if (lacking)
        hints.push(
          `${lacking.runs} of ${known.runs.length} runs have ${lacking.metric}; the others are left out of the figures. Choose another metric, or evaluate it in all of them.`,
        );
      else if (known.metrics.length && known.metrics.every(({ runs }) => runs < known.runs.length))
        hints.push(
          "No metric is in all runs: the figures take the one that most of them have. Choose another, or evaluate one in all of them.",
        );
      if (known.unplanned && !parameters.figure) hints.push(known.unplanned);
      const cards = [...shown.querySelectorAll(":scope > figure")];
      while (cards.length < count) cards.push(h("figure", { class: "card waiting" }));
      for (const card of cards) if (card.classList.contains("waiting")) fill(card, working("Fitting the law…"));
      fill(
        shown,
        hints.map((text) => notice(text)),
        known.warnings.map((text) => notice(text)),
        cards,
      );
      await (parameters.figure ? drawFigure(cards[0], parameters.figure) : drawOverview(cards));
    }
  }

  /** What nobody waits for: verdicts of the runs, and which of the other figures can be drawn. One after the other. */
  async function drawLater() {
    await runs.judge(known);
    if (!known.empty) for (const { name } of figures) await canDraw(name, needs(), query(), { signal });
    list.show(needs());
  }

  let later = null; // the work that nobody waits for, while it is going on
  const drawEverything = async () => {
    await Promise.all([drawProgress(), runs.draw(known), drawShown()]);
    later ??= drawLater()
      .catch((error) => {
        if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error; // the figures say what is wrong
      })
      .finally(() => {
        later = null;
      });
  };
  list.show(needs());
  drawEverything().catch((error) => {
    if (error.name !== "AbortError") fill(shown, failure(error));
  });
  return (now) => {
    known = now;
    return drawEverything();
  };
}
