// Study: how far the cells are, the frontier and n*(C), and every other figure by name.

import { get } from "../api.js";
import { draw } from "../chart.js";
import { fill, h } from "../dom.js";
import { number, plural, value, whole } from "../format.js";
import { chip, commandLine, downloads, failure, metricSelect, notice, preliminary, select, table } from "../widgets.js";

const FIRST = ["reward", "optimum"];
const STATES = ["finished", "running", "stopped", "waiting", "failed"];

const paperOf = ({ source }) => source.split(" ")[0] || "Other";

export async function render(root, { about, parameters, go, signal }) {
  const {
    data: { figures },
  } = await get("figures", {}, { signal });
  let known = about;
  const query = () => ({ part: known.part, metric: parameters.metric, unit: parameters.unit });
  const progress = h("section", { class: "card", "aria-label": "Progress" });
  const shown = h("div", { class: parameters.figure ? "stack" : "stack pair" });
  const cells = h("section", { class: "card", "aria-label": "Runs" });
  const link = (changes) => {
    const next = new URLSearchParams(
      Object.entries({ ...query(), figure: parameters.figure, ...changes }).filter(([, v]) => v),
    );
    return `/study?${next}`;
  };
  const entry = ({ name, title, source }) =>
    h(
      "li",
      {},
      h(
        "a",
        { href: link({ figure: name }), "aria-current": name === (parameters.figure ?? null) ? "page" : null },
        title,
      ),
      h("small", {}, source.replace(/^\S+ /, "")),
    );
  const papers = [...new Set(figures.map(paperOf))].map((paper) => [
    paper,
    figures.filter((figure) => paperOf(figure) === paper),
  ]);
  const list = h(
    "nav",
    { class: "card figures", "aria-label": "Figures" },
    h(
      "details",
      { open: innerWidth > 860 },
      h("summary", {}, "Figures"),
      h("ul", {}, entry({ name: null, title: "Overview", source: "" })),
      papers.map(([paper, some]) => [h("h2", {}, paper), h("ul", {}, some.map(entry))]),
    ),
  );
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
      h("div", { class: "stack" }, h("section", { class: "card", "aria-label": "How to read it" }, reading), list),
      h("div", { class: "stack" }, progress, shown, cells),
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

  async function drawCells() {
    const label = `${plural(known.runs.length, "run")} with points`;
    const runLink = (name, text) =>
      h("a", { href: `/run?${new URLSearchParams({ part: known.part, run: name })}` }, text);
    if (!known.study) {
      fill(
        cells,
        h("h2", {}, "Runs"),
        table(
          [
            ["run", (r) => runLink(r.run, r.run), null, (r) => r.run],
            ["Bp", (r) => r.problems_per_batch ?? "–", "number", (r) => r.problems_per_batch],
            ["n", (r) => r.rollouts_per_problem ?? "–", "number", (r) => r.rollouts_per_problem],
            ["seed", (r) => r.seed ?? "–", "number", (r) => r.seed],
            ["points", (r) => whole(r.points), "number", (r) => r.points],
          ],
          known.runs,
          { caption: label, sortable: true },
        ),
        downloads([["JSON", "about", { part: known.part }]]),
      );
      return;
    }
    const [
      { data, command },
      {
        data: { prefix },
      },
    ] = await Promise.all([
      get("cells", { part: known.part }, { signal }),
      get("pulse", { part: known.part }, { signal }),
    ]);
    const rows = data.runs
      .filter(({ run }) => run.startsWith(prefix))
      .map((row) => ({ ...row, name: row.run.slice(prefix.length) }));
    const logged = rows.flatMap((row) => Object.keys(row.last ?? {}));
    const metric = parameters.metric ?? logged.find((name) => name.startsWith("avg@")) ?? null;
    const last = (row) => row.last?.[metric] ?? null;
    fill(
      cells,
      h("h2", {}, "Cells"),
      table(
        [
          ["cell", (r) => (r.last ? runLink(r.name, r.name) : r.name), null, (r) => r.name],
          ["Bp", (r) => r.problems_per_batch, "number", (r) => r.problems_per_batch],
          ["n", (r) => r.rollouts_per_problem, "number", (r) => r.rollouts_per_problem],
          ["updates", (r) => whole(r.update_steps), "number", (r) => r.update_steps],
          ["seed", (r) => r.seed, "number", (r) => r.seed],
          ["state", (r) => chip(r.state), null, (r) => r.state],
          [
            "rollouts",
            (r) =>
              h(
                "span",
                { class: "with-bar" },
                h("progress", { max: r.compute, value: r.rollouts, "aria-label": `${r.name} done` }),
                number(r.rollouts),
              ),
            null,
            (r) => r.rollouts / r.compute,
          ],
          [metric ?? "value", (r) => value(last(r)), "number", last],
        ],
        rows,
        { caption: "Cells of the study", sortable: true },
      ),
      commandLine(command),
      downloads([
        ["JSON", "cells", { part: known.part }],
        ["CSV", "cells", { part: known.part, format: "csv" }],
      ]),
    );
  }

  /** One figure with its sentence, its command and its files, in a place of its own. */
  async function drawFigure(card, name, { final = false } = {}) {
    const pending = (text) => {
      if (!card.childElementCount)
        fill(card, h("p", { class: "muted" }, `Making the ${text}… the first time takes a while.`));
    };
    try {
      const path = `figures/${name}/chart`;
      const { data, command, stale, rough } = await get(path, { ...query(), final }, { signal, pending });
      if (data.panels.length === 0) {
        fill(card, h("h2", {}, data.title), notice(`This figure needs: ${data.needs}`, "empty"));
      } else {
        const place = card.querySelector(".chart") ?? h("div");
        fill(
          card,
          h("h2", {}, data.title, " ", h("small", {}, data.source)),
          preliminary(rough),
          place,
          h("figcaption", {}, data.caption),
          commandLine(command),
          downloads([
            ...["PNG", "SVG", "CSV"].map((kind) => [kind, path, { ...query(), format: kind.toLowerCase() }]),
            ["JSON", `figures/${name}`, { ...query(), final: true }],
          ]),
        );
        await draw(place, data.panels, { label: `${data.title}: ${data.caption}`, wide: data.panels.length === 1 });
      }
      if (stale) setTimeout(() => card.isConnected && drawFigure(card, name), 3000);
      else if (rough) await drawFigure(card, name, { final: true });
    } catch (error) {
      fill(card, h("h2", {}, figures.find((figure) => figure.name === name)?.title ?? name), failure(error));
    }
  }

  async function drawAll() {
    if (known.empty) {
      fill(shown, notice(known.empty, "empty"));
    } else {
      const names = parameters.figure ? [parameters.figure] : FIRST;
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
      let cards = [...shown.querySelectorAll(":scope > figure")];
      if (cards.length !== names.length) cards = names.map(() => h("figure", { class: "card" }));
      fill(
        shown,
        hints.map((text) => notice(text)),
        known.warnings.map((text) => notice(text)),
        cards,
      );
      await Promise.all(names.map((name, i) => drawFigure(cards[i], name)));
    }
  }

  const rest = () => Promise.all([drawProgress(), drawCells()]);
  await rest();
  drawAll().catch((error) => {
    if (error.name !== "AbortError") fill(shown, failure(error));
  });
  return async (now) => {
    known = now;
    await rest();
    await drawAll();
  };
}
