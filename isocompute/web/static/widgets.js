// Pieces that several pages are made of.

import { address, ApiError } from "./api.js";
import { h } from "./dom.js";

/** A command line with a button that copies it. */
export function commandLine(command, label = "the same on the command line") {
  if (!command) return null;
  const copied = h("span", { role: "status", class: "copied" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(command);
      copied.textContent = "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      copied.textContent = "selected: press Ctrl-C";
    }
    setTimeout(() => {
      copied.textContent = "";
    }, 2000);
  };
  const code = h("code", { tabindex: "0", role: "group", "aria-label": label }, command);
  return h(
    "div",
    { class: "command" },
    h("span", { class: "prompt", "aria-hidden": "true" }, "$"),
    code,
    h("button", { type: "button", class: "quiet", onclick: copy }, "Copy"),
    copied,
  );
}

/** Links that save a result: [["PNG", "figures/reward/chart", {format: "png"}], …]. */
export function downloads(items) {
  const links = items.map(([label, path, parameters]) =>
    h(
      "a",
      { href: address(path, parameters), download: label === "JSON" ? `${path.replaceAll("/", "-")}.json` : "" },
      label,
    ),
  );
  return h("p", { class: "downloads" }, h("span", {}, "Save "), links);
}

/** What is missing and what would help; a command that it ends with can be copied. */
export function notice(text, kind = "note") {
  const [, before, command] = /^(.*) `(isocompute [^`]+)`$/s.exec(text) ?? [];
  if (!command) return h("p", { class: `notice ${kind}` }, withCode(text));
  return h("div", { class: `notice ${kind}` }, h("p", {}, withCode(before)), commandLine(command, "what to give"));
}

/** What is being made, with a spinner. */
export function working(text) {
  return h("p", { class: "working muted", role: "status" }, text);
}

/** What stands in the place of a result that could not be had. */
export function failure(error) {
  if (error.name === "AbortError") throw error;
  if (error instanceof ApiError) return notice(error.message, "empty");
  throw error;
}

/** Text whose `commands` are set as code. */
export function withCode(text) {
  return String(text)
    .split("`")
    .map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** Rows by a key: numbers as numbers, all else as text in which numbers count; what is not there is an empty text. */
function sorted(rows, key, down) {
  const compare = (x, y) =>
    typeof x === "number" && typeof y === "number"
      ? x - y
      : String(x).localeCompare(String(y), "en", { numeric: true });
  return [...rows].sort((a, b) => (down ? -1 : 1) * compare(key(a) ?? "", key(b) ?? ""));
}

/** A table: columns are [title, row → cell, kind, row → what to sort by], where kind "number" aligns right. Heads sort
 * where `order` is given: {by, down}, the title of a column, kept by the caller for a table that is drawn again. */
export function table(columns, rows, { caption, order = null, empty = "nothing here yet" } = {}) {
  const body = h("tbody");
  const draw = (list) =>
    body.replaceChildren(
      ...list.map((row) =>
        h(
          "tr",
          { class: row.class ?? null },
          columns.map(([, cell, kind], i) =>
            h(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: kind ?? null }, cell(row)),
          ),
        ),
      ),
    );
  const heads = columns.map(([title, , kind, key]) =>
    h(
      "th",
      { scope: "col", class: kind ?? null },
      order && key ? h("button", { type: "button", class: "sort", onclick: () => turn(title) }, title) : title,
    ),
  );
  const turn = (title) => {
    Object.assign(order, { by: title, down: order.by === title && !order.down });
    show();
  };
  const show = () => {
    const at = columns.findIndex(([title, , , key]) => key && title === order?.by);
    for (const [i, head] of heads.entries()) {
      if (i === at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    draw(at < 0 ? rows : sorted(rows, columns[at][3], order.down));
  };
  show();
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, heads)), body),
    rows.length ? null : h("p", { class: "muted" }, empty),
  );
}

/** A value with its interval as a small bar on a shared scale. */
export function intervalBar(at, [low, high], [first, last], { chosen = false } = {}) {
  const x = (v) => 2 + (96 * (v - first)) / (last - first || 1);
  return h(
    "svg",
    {
      class: chosen ? "interval chosen" : "interval",
      viewBox: "0 0 100 12",
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    h("line", { x1: x(low), x2: x(high), y1: 6, y2: 6 }),
    h("rect", { x: x(at) - 1, y: 2, width: 2, height: 8 }),
  );
}

/** A small line of a metric over a run. */
export function sparkline(values) {
  const there = values.map((v, i) => [i, v]).filter(([, v]) => typeof v === "number");
  const [low, high] = [Math.min(...there.map(([, v]) => v)), Math.max(...there.map(([, v]) => v))];
  const x = (i) => (100 * i) / Math.max(values.length - 1, 1);
  const y = (v) => 26 - (24 * (v - low)) / (high - low || 1);
  return h(
    "svg",
    { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("polyline", { points: there.map(([i, v]) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ") }),
  );
}

let fields = 0;

/** A control under its label. */
export function field(label, control) {
  control.id ||= `field-${++fields}`;
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control);
}

/** A select under its label: options are values or [value, text]. */
export function select(label, options, value, onchange) {
  const list = options.map((option) => {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    return h("option", { value: key, selected: key === (value ?? "") }, text);
  });
  return field(label, h("select", { onchange: (event) => onchange(event.target.value) }, list));
}

/** Which metric to read: the one that `fit` chooses, or any that a run has. */
export function metricSelect({ metrics, runs }, value, onchange) {
  const options = metrics.map(({ metric, runs: having }) => [
    metric,
    having === runs.length ? metric : `${metric} (${having} runs)`,
  ]);
  return select("Metric", [["", "auto"], ...options], value, onchange);
}

/** A state or verdict in a word. */
export function chip(word) {
  return h("span", { class: `chip ${word}` }, word.replaceAll("_", " "));
}
