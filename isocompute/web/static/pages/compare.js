// Compare: do two runs differ in where they end, or only in how fast they get there?

import { get } from "../api.js";
import { draw } from "../chart.js";
import { fill, h } from "../dom.js";
import { number, pair, percent, unitName, value } from "../format.js";
import { commandLine, downloads, failure, metricSelect, notice, select, table } from "../widgets.js";

export async function render(root, { about, parameters, remember, again, signal }) {
  if (about.runs.length < 2) {
    return void fill(
      root,
      h("h1", {}, "Compare"),
      notice(
        `A comparison needs two runs; there ${about.runs.length === 1 ? "is one" : "are none yet"}. Run another recipe, or start the app on the folder that holds both.`,
        "empty",
      ),
    );
  }
  const names = about.runs.map((run) => run.run);
  let state = { a: parameters.a ?? names[0], b: parameters.b ?? names.at(-1), metric: parameters.metric };
  let asked = 0;
  const query = () => ({ ...state, part: about.part });
  const answer = h("section", { class: "card", "aria-live": "polite", "aria-label": "Answer" });
  const figure = h("figure", { class: "card" });
  const controls = h(
    "form",
    { class: "controls card", onsubmit: (event) => event.preventDefault(), "aria-label": "Which runs" },
    h(
      "div",
      { class: "fields" },
      select("One", names, state.a, (a) => change({ a })),
      select("The other", names, state.b, (b) => change({ b })),
      metricSelect(about, state.metric, (metric) => change({ metric })),
    ),
  );
  fill(
    root,
    h("h1", {}, "Compare"),
    h("div", { class: "split" }, controls, h("div", { class: "stack" }, answer, figure)),
  );

  function change(changes) {
    state = { ...state, ...changes };
    remember(changes);
    return update();
  }

  async function update() {
    const mine = ++asked;
    try {
      const [{ data, command }, { data: chart }] = await Promise.all([
        get("compare", query(), { signal }),
        get("compare/chart", query(), { signal }),
      ]);
      if (mine !== asked) return;
      drawAnswer(data, command, chart.metric, unitName(chart.unit));
      const place = figure.querySelector(".chart") ?? h("div");
      fill(
        figure,
        place,
        downloads(
          ["PNG", "SVG", "CSV"].map((kind) => [kind, "compare/chart", { ...query(), format: kind.toLowerCase() }]),
        ),
      );
      await draw(place, chart.panels, { label: chart.title, wide: true });
    } catch (error) {
      if (mine !== asked) return;
      fill(answer, failure(error));
      fill(figure);
    }
  }

  function drawAnswer(data, command, metric, unit) {
    const name = { a: state.a, b: state.b };
    const higher =
      {
        undecided: data.unrisen
          ? `Which ceiling is higher is undecided: ${name[data.unrisen]} was run for less and has not begun to rise.`
          : "Which ceiling is higher is undecided: run the one that has risen less for longer.",
        same: "The ceilings do not differ by more than the error.",
      }[data.higher] ?? `${name[data.higher]} has the higher ceiling, by ${value(Math.abs(data.difference))}.`;
    const faster =
      {
        undecided: "Which is faster is undecided: a midpoint lies outside the data.",
        same: "Neither is faster to half of the rise to the common ceiling.",
      }[data.faster] ??
      `${name[data.faster]} needs less compute for half of the rise to the common ceiling (${data.speed_ratio.toFixed(2)}×, 95% ${data.speed_ratio_interval.map((x) => x.toFixed(2)).join("–")}).`;
    const sides = [
      ["a", data.a],
      ["b", data.b],
    ].map(([side, numbers]) => ({ name: name[side], ...numbers }));
    fill(
      answer,
      h("p", { class: "headline" }, higher),
      h(
        "p",
        {},
        `Difference in ${metric} ${value(data.difference)} (${data.interval.map(value).join(" to ")}, ${data.error_rule}). ${faster}`,
      ),
      data.falls.map((fall) =>
        notice(
          `${name[fall.side]} collapsed after ${number(fall.after)} ${unit} and is at ${value(fall.value)}: ceilings and speeds are of what came before.`,
        ),
      ),
      data.falls.length
        ? h("p", {}, data.ahead_now === "same" ? "Neither is ahead now." : `${name[data.ahead_now]} is ahead now.`)
        : null,
      table(
        [
          ["run", (s) => s.name, "name"],
          ["form", (s) => s.form],
          ["ceiling", (s) => value(s.asymptote), "number"],
          ["95%", (s) => pair(s.asymptote_interval), "number"],
          ["rise done", (s) => percent(s.rise_done), "number"],
          ["efficiency", (s) => s.efficiency.toFixed(2), "number"],
          [`midpoint (${unit})`, (s) => number(s.midpoint), "number"],
        ],
        sides,
        { caption: "The two runs" },
      ),
      h("p", { class: "muted" }, `Efficiency and midpoint are at the common ceiling ${value(data.common_ceiling)}.`),
      data.overtakes.length
        ? h(
            "ul",
            {},
            data.overtakes.map((o) =>
              h(
                "li",
                {},
                `${name[o.winner]} overtakes at ${number(o.compute)} ${unit}${o.extrapolated ? " (extrapolated)" : ""}, 95% ${number(o.interval[0])}–${number(o.interval[1])}, in ${percent(o.probability)} of replicates`,
              ),
            ),
          )
        : h("p", { class: "muted" }, "No overtaking up to four times the compute seen."),
      commandLine(command),
      downloads([["JSON", "compare", query()]]),
    );
  }

  update();
  return (now) => (now.runs.length === about.runs.length ? update() : again()); // a new run is a new choice
}
