// Run: its curve and where it is going, whether it is healthy, and every other metric it logs.

import { get } from "../api.js";
import { draw } from "../chart.js";
import { fill, h } from "../dom.js";
import { number, pair, percent, unitName, value } from "../format.js";
import {
  chip,
  commandLine,
  downloads,
  failure,
  metricSelect,
  notice,
  select,
  sparkline,
  table,
  withCode,
} from "../widgets.js";

const COMPUTE = new Set(["step", "rollouts", "tokens", "seconds", "gpu_hours"]);

export async function render(root, { about, parameters, remember, again, signal }) {
  if (about.empty) return void fill(root, h("h1", {}, "Run"), notice(about.empty, "empty"));
  let state = {
    run: parameters.run ?? about.runs[0].run,
    to: parameters.to ?? "2x",
    metric: parameters.metric,
    fit_until: parameters.fit_until,
  };
  let asked = 0;
  const query = () => ({ ...state, part: about.part });
  const forecast = h("section", { class: "card", "aria-live": "polite", "aria-label": "Forecast" });
  const figure = h("figure", { class: "card" });
  const health = h("section", { class: "card", "aria-label": "Health" });
  const metrics = h("section", { class: "card", "aria-label": "Metrics" });
  const controls = h("form", {
    class: "controls card",
    onsubmit: (event) => event.preventDefault(),
    "aria-label": "Which run",
  });
  fill(
    root,
    h("h1", {}, "Run"),
    h("div", { class: "split" }, controls, h("div", { class: "stack" }, forecast, figure, health, metrics)),
  );

  function drawControls() {
    fill(
      controls,
      h(
        "div",
        { class: "fields" },
        select(
          "Run",
          about.runs.map((run) => run.run),
          state.run,
          (run) => change({ run }),
        ),
        metricSelect(about, state.metric, (metric) => change({ metric })),
        select(
          "Forecast to",
          [
            ["1.5x", "1.5 times its compute"],
            ["2x", "twice its compute"],
            ["4x", "four times"],
            ["8x", "eight times"],
          ],
          state.to,
          (to) => change({ to }),
        ),
        select(
          "Use",
          [
            ["", "all points"],
            ["0.5", "the first half, to check"],
            ["0.25", "the first quarter, to check"],
          ],
          state.fit_until,
          (fit_until) => change({ fit_until }),
        ),
      ),
    );
  }

  function change(changes) {
    state = { ...state, ...changes };
    remember(changes);
    return update();
  }

  async function update() {
    const mine = ++asked;
    const each = (place, work) =>
      work().catch((error) => {
        if (mine === asked) fill(place, failure(error));
      });
    const chart = get("forecast/chart", query(), { signal });
    await Promise.all([
      each(forecast, async () => {
        const { data, command } = await get("forecast", query(), { signal });
        const { metric, unit } = (await chart).data; // which the command does not say
        if (mine === asked) drawForecast({ ...data, metric, unit: unitName(unit) }, command);
      }),
      each(figure, async () => {
        const { data } = await chart;
        if (mine !== asked) return;
        const place = figure.querySelector(".chart") ?? h("div");
        fill(
          figure,
          place,
          h("figcaption", { class: "hidden" }, data.caption),
          downloads(
            ["PNG", "SVG", "CSV"].map((kind) => [kind, "forecast/chart", { ...query(), format: kind.toLowerCase() }]),
          ),
        );
        await draw(place, data.panels, { label: `${data.title}: ${data.caption}`, wide: true });
      }),
      each(health, async () => {
        const { data, command } = await get("health", { part: about.part, run: state.run }, { signal });
        if (mine === asked) drawHealth(data.runs[0], command);
      }),
      each(metrics, async () => {
        const { data } = await get("points", { part: about.part, run: state.run }, { signal });
        if (mine === asked) drawMetrics(data);
      }),
    ]);
  }

  function drawForecast(data, command) {
    fill(
      forecast,
      h(
        "p",
        { class: "headline" },
        chip(data.verdict),
        ` ${data.metric} ${value(data.value)} at ${number(data.at)} ${data.unit} `,
        h("span", { class: "muted" }, `(${percent(data.level)}: ${pair(data.interval)}); now ${value(data.now)}`),
      ),
      h("p", {}, data.reason),
      h(
        "p",
        { class: "muted" },
        data.asymptote === null
          ? ""
          : `ceiling ${value(data.asymptote)} (95%: ${pair(data.asymptote_interval)}), form ${data.form}; `,
        `from ${data.fitted_points} points up to ${number(data.fitted_until)} ${data.unit}`,
      ),
      commandLine(command),
      downloads([["JSON", "forecast", query()]]),
    );
  }

  function drawHealth(data, command) {
    const idle = data.checks.filter((check) => !check.ran);
    fill(
      health,
      h("h2", {}, "Health ", chip(data.verdict)),
      data.findings.length
        ? h(
            "ul",
            { class: "findings" },
            data.findings.map((f) =>
              h(
                "li",
                {},
                h(
                  "p",
                  {},
                  chip(f.severity),
                  " ",
                  h("b", {}, f.code.replaceAll("_", " ")),
                  f.since_step === null ? "" : ` since step ${f.since_step}`,
                  ": ",
                  withCode(f.evidence),
                ),
                h("p", { class: "muted" }, withCode(f.advice), " ", h("small", {}, f.source)),
              ),
            ),
          )
        : h("p", {}, `Nothing stands out in ${data.checks.length - idle.length} checks.`),
      idle.length
        ? h(
            "details",
            {},
            h("summary", {}, `${idle.length} checks need more of the log`),
            h(
              "ul",
              {},
              idle.map((check) => h("li", {}, `${check.code.replaceAll("_", " ")}: ${check.needs ?? "no data"}`)),
            ),
          )
        : null,
      commandLine(command),
      downloads([
        ["JSON", "health", { part: about.part, run: state.run }],
        ["CSV", "health", { part: about.part, run: state.run, format: "csv" }],
      ]),
    );
  }

  function drawMetrics(data) {
    const names = [...new Set(data.points.flatMap((point) => Object.keys(point)))].filter(
      (name) => !COMPUTE.has(name) && data.points.some((point) => typeof point[name] === "number"),
    );
    const column = (name) => data.points.map((point) => point[name]).filter((v) => typeof v === "number");
    const short = (v) => (Math.abs(v) < 10 ? Number(v.toPrecision(3)) : number(v));
    const settings = Object.entries(data.settings).map(([name, v]) => ({
      name,
      v: typeof v === "object" ? JSON.stringify(v) : String(v),
    }));
    fill(
      metrics,
      h("h2", {}, "Metrics"),
      table(
        [
          ["metric", (name) => name],
          ["over the run", (name) => sparkline(data.points.map((point) => point[name]))],
          ["first", (name) => short(column(name)[0]), "number"],
          ["last", (name) => short(column(name).at(-1)), "number"],
          ["values", (name) => column(name).length, "number"],
        ],
        names,
        { caption: "Metrics of the run" },
      ),
      h(
        "details",
        {},
        h("summary", {}, "Settings"),
        table(
          [
            ["setting", (s) => s.name],
            ["value", (s) => s.v, "text"],
          ],
          settings,
          { caption: "Settings of the run" },
        ),
      ),
      downloads([
        ["CSV", "points", { part: about.part, run: state.run, format: "csv" }],
        ["JSON", "points", { part: about.part, run: state.run }],
      ]),
    );
  }

  drawControls();
  update().catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
  return (now) => (now.runs.length === about.runs.length ? update() : again()); // a new run is a new choice
}
