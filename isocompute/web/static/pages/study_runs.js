// The runs of a study side by side: settings, the metric's course, and verdicts, which come when all else is drawn.

import { ApiError, get } from "../api.js";
import { fill, h } from "../dom.js";
import { number, plural, value, whole } from "../format.js";
import { chip, commandLine, downloads, sparkline, table } from "../widgets.js";

const VERDICTS = ["improving", "flat", "declining", "too_early"];
const HEALTHS = ["problem", "warning", "healthy", "unknown"];

/** The table in its place. `judge` fills in the verdicts, a few runs at a time. */
export function runsTable(place, { query, signal }) {
  let statuses = new Map(); // run → its row of /api/runs
  const order = {}; // how the reader sorted the table
  const verdicts = new Map(); // run → the last ones that were made of it
  let marks = new Map(); // run → where its verdicts are written

  const of = (row) => statuses.get(row.name);
  const runLink = (name) => h("a", { href: `/run?${new URLSearchParams({ part: query().part, run: name })}` }, name);
  const mark = (row) => {
    if (!marks.has(row.name)) marks.set(row.name, { forecast: h("span"), health: h("span") });
    return marks.get(row.name);
  };
  const rankIn = (list, word) => (word ? list.indexOf(word) : list.length);

  function statusColumns(metric) {
    const most = (key) => Math.max(...[...statuses.values()].map((row) => row[key] ?? -Infinity));
    const [last, best] = [most("last"), most("best")];
    const figure = (x, top) => (x !== null && x === top && statuses.size > 1 ? h("b", {}, value(x)) : value(x));
    return [
      [metric, (r) => (of(r)?.line.length > 1 ? sparkline(of(r).line) : "")],
      ["last", (r) => figure(of(r)?.last ?? null, last), "number", (r) => of(r)?.last],
      ["best", (r) => figure(of(r)?.best ?? null, best), "number", (r) => of(r)?.best],
      ["forecast", (r) => mark(r).forecast, null, (r) => rankIn(VERDICTS, verdicts.get(r.name)?.forecast)],
      ["health", (r) => mark(r).health, null, (r) => rankIn(HEALTHS, verdicts.get(r.name)?.health)],
    ];
  }

  function drawMarks() {
    for (const [name, spans] of marks) {
      const verdict = verdicts.get(name);
      if (!verdict) {
        if (statuses.has(name)) for (const span of Object.values(spans)) fill(span, "…");
        continue;
      }
      fill(spans.forecast, verdict.forecast ? chip(verdict.forecast) : "–");
      spans.forecast.title = verdict.reason;
      fill(spans.health, chip(verdict.health));
    }
  }

  /** The numbers of all runs, which are there at once, and the verdicts that are; null where no metric can be read. */
  async function read(how = {}) {
    try {
      const { data } = await get("runs", { ...query(), ...how }, { signal });
      statuses = new Map(data.runs.map((row) => [row.run, row]));
      for (const row of data.runs) if (row.health !== null) verdicts.set(row.run, row);
      return data;
    } catch (error) {
      if (error instanceof ApiError) return null; // the figures say what is wrong
      throw error;
    }
  }

  function drawRuns(runs, metric) {
    const rows = runs.map((row) => ({ ...row, name: row.run }));
    const setting = (title, key) =>
      rows.some((row) => row[key] !== null) ? [[title, (r) => r[key] ?? "–", "number", (r) => r[key]]] : [];
    fill(
      place,
      h("h2", {}, "Runs"),
      table(
        [
          ["run", (r) => runLink(r.name), "name", (r) => r.name],
          ...setting("Bp", "problems_per_batch"),
          ...setting("n", "rollouts_per_problem"),
          ...setting("seed", "seed"),
          ["points", (r) => whole(r.points), "number", (r) => r.points],
          ...(metric ? statusColumns(metric) : []),
        ],
        rows,
        { caption: `${plural(rows.length, "run")} with points`, order },
      ),
      downloads([
        ["JSON", "runs", query()],
        ["CSV", "runs", { ...query(), format: "csv" }],
      ]),
    );
  }

  /** The cells of a study, with or without points; `prefix` is what their names begin with in a part of it. */
  function drawCells({ data, command }, prefix, metric) {
    const rows = data.runs
      .filter(({ run }) => run.startsWith(prefix))
      .map((row) => ({ ...row, name: row.run.slice(prefix.length) }));
    fill(
      place,
      h("h2", {}, "Cells"),
      table(
        [
          ["cell", (r) => (r.last ? runLink(r.name) : r.name), "name", (r) => r.name],
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
          ...(metric ? statusColumns(metric) : []),
        ],
        rows,
        { caption: "Cells of the study", order },
      ),
      commandLine(command),
      downloads([
        ["JSON", "cells", { part: query().part }],
        ["CSV", "cells", { part: query().part, format: "csv" }],
      ]),
    );
  }

  async function draw(about) {
    marks = new Map();
    if (about.study) {
      const part = { part: about.part };
      const [cells, pulse, runs] = await Promise.all([
        get("cells", part, { signal }),
        get("pulse", part, { signal }),
        about.empty ? null : read(),
      ]);
      drawCells(cells, pulse.data.prefix, runs?.metric ?? null);
    } else if (!about.empty) {
      const found = await read();
      drawRuns(about.runs, found?.metric ?? null);
    }
    drawMarks();
  }

  async function judge(about) {
    if (about.empty) return;
    for (let found = await read(); found?.left && !signal.aborted; drawMarks()) found = await read({ judge: true });
    drawMarks();
  }

  return { draw, judge };
}
