// Claims: what the two papers say, and what these runs say of it.

import { get, search } from "../api.js";
import { fill, h } from "../dom.js";
import { plural, value } from "../format.js";
import { chip, commandLine, downloads, failure, metricSelect, notice, withCode, working } from "../widgets.js";

const VERDICTS = ["holds", "fails", "undecided"];

export async function render(root, { about, parameters, remember, go, signal }) {
  if (about.empty) return void fill(root, h("h1", {}, "Claims"), notice(about.empty, "empty"));
  let verdict = VERDICTS.includes(parameters.verdict) ? parameters.verdict : "";
  let claims = [];
  const query = { part: about.part, metric: parameters.metric };
  const filters = h("div", { class: "filters", role: "group", "aria-label": "Show" });
  const source = h("div"); // where the claims come from, or why there are none
  const metric = metricSelect(about, parameters.metric, (name) =>
    go(`/claims${search({ part: about.part, metric: name })}`),
  );
  const summary = h(
    "section",
    { class: "card", "aria-live": "polite", "aria-label": "Verdicts" },
    h("div", { class: "fields row" }, filters, metric),
    source,
  );
  const list = h("div", { class: "stack" });
  fill(root, h("h1", {}, "Claims"), summary, list);

  function drawFilters() {
    const count = (name) => claims.filter((claim) => claim.verdict === name).length;
    const choose = (name) => {
      verdict = name;
      remember({ verdict });
      drawFilters();
      drawList();
    };
    fill(
      filters,
      [["", `all ${claims.length}`], ...VERDICTS.map((name) => [name, `${name} ${count(name)}`])].map(([name, text]) =>
        h(
          "button",
          { type: "button", "aria-pressed": String(name === verdict), onclick: () => choose(name) },
          text,
        ),
      ),
    );
  }

  function drawList() {
    const place = (claim) => (claim.verdict === "undecided" ? (claim.runs.length ? 1 : 2) : 0); // what is decided first
    const kept = claims.filter((claim) => !verdict || claim.verdict === verdict).sort((a, b) => place(a) - place(b));
    fill(
      list,
      kept.length ? null : notice("No claim has this verdict here."),
      kept.map((claim) =>
        h(
          "article",
          { class: "card claim" },
          h("header", {}, chip(claim.verdict), h("h2", {}, claim.statement)),
          h("p", {}, statistic(claim)),
          claim.needs ? h("p", { class: "muted" }, "Needs: ", withCode(claim.needs)) : null,
          h(
            "p",
            { class: "muted" },
            claim.source,
            claim.runs.length
              ? [
                  " · ",
                  h(
                    "details",
                    { class: "inline" },
                    h("summary", { "data-key": claim.code }, plural(claim.runs.length, "run")),
                    claim.runs.join(", "),
                  ),
                ]
              : null,
          ),
        ),
      ),
    );
  }

  async function update() {
    if (!claims.length) fill(source, working("Judging the claims…"));
    try {
      const { data, command, stale } = await get("claims", query, { signal });
      claims = data.claims;
      drawFilters();
      fill(
        source,
        commandLine(command),
        downloads([
          ["JSON", "claims", query],
          ["CSV", "claims", { ...query, format: "csv" }],
        ]),
      );
      drawList();
      if (stale) setTimeout(() => summary.isConnected && update(), 3000);
    } catch (error) {
      fill(source, failure(error));
    }
  }

  update();
  return () => update();
}

/** The numbers behind a verdict, the one that its interval is about first. */
function statistic(claim) {
  const { value: main, unit, ...rest } = claim.statistic;
  const shown = (v) =>
    typeof v === "number"
      ? Number.isInteger(v)
        ? String(v)
        : value(v)
      : typeof v === "object"
        ? JSON.stringify(v)
        : String(v);
  const interval = claim.interval ? ` (95%: ${shown(claim.interval[0])} to ${shown(claim.interval[1])})` : "";
  const head = main === undefined || main === null ? [] : [h("b", {}, shown(main), unit ? ` ${unit}` : ""), interval];
  const others = Object.entries(rest)
    .filter(([, v]) => v !== null && v !== "")
    .map(([name, v]) => `${name.replaceAll("_", " ")} ${shown(v)}`);
  return [head, head.length && others.length ? " · " : "", others.join(" · ")];
}
