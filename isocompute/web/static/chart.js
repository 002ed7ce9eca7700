// Charts: Vega-Lite from the server, drawn here by Vega, which the server hands over too.
//
// Vega's own way to run expressions is eval, which the content policy forbids; `ast` makes it interpret them instead.

import { h } from "./dom.js";

const EMBED = {
  ast: true,
  actions: false,
  renderer: "canvas",
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};
// In pixels:
const BESIDE = 200; // what may stand beside the plot itself
const EDGES = 20; // padding, and a font that is a little wider than the one that was measured
const AROUND = 140; // heading, axis and legend above and below a plot
const AXIS = 40; // left of a plot
const [LETTER, SYMBOL] = [6.2, 26]; // of subtitles and legends
const SETTLE = 150; // milliseconds without a change of the window's size
const charts = new Map(); // those on the page: element → {boxes, views, width, paint, painted}
let loading = null;
let dark = null;
let settling = null;

/** Draw charts again, those that `changed`. */
function repaint(changed) {
  for (const [element, chart] of charts) {
    if (!element.isConnected) forget(element);
    else if (changed(element, chart)) chart.paint();
  }
}

document.addEventListener("theme", () => repaint(() => true));
addEventListener("resize", () => {
  clearTimeout(settling);
  settling = setTimeout(() => repaint((element, { width }) => element.clientWidth !== width), SETTLE);
});

/** A view keeps listeners of its own. */
function release({ views }) {
  for (const view of views) view?.finalize();
}

/** Let go of an element's charts. */
function forget(element) {
  if (charts.has(element)) release(charts.get(element));
  charts.delete(element);
}

function vega() {
  loading ??= new Promise((done, failed) => {
    const script = h("script", { type: "module", src: "/vega.js" });
    script.addEventListener("load", () => done());
    script.addEventListener("error", () => failed(new Error("the charts' script did not load")));
    document.head.append(script);
  });
  return loading;
}

/** What each colour of a chart becomes on a dark page, as in the report. */
function darkColours() {
  dark ??= fetch("/dark.json").then((response) => response.json());
  return dark;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

async function coloured(spec) {
  if (!isDark()) return spec;
  const colours = await darkColours();
  const change = (x) => {
    if (typeof x === "string") return colours[x] ?? x;
    if (Array.isArray(x)) return x.map(change);
    if (x && typeof x === "object") {
      return Object.fromEntries(Object.entries(x).map(([key, v]) => [key, key === "datasets" ? v : change(v)]));
    }
    return x;
  };
  return change(spec);
}

/** A panel as wide as there is room, but not much wider than it is drawn at; concatenated ones keep their size and
 * scroll. Its width here is that of the whole, names of rows and all: a title is cut, or it would count too. */
function fitted(spec, room) {
  if (typeof spec.width !== "number") return spec;
  const width = Math.min(spec.width + BESIDE, Math.max(180, room));
  return {
    ...(width < spec.width + EDGES + AXIS ? narrowed(spec, width) : spec),
    width,
    title: spec.title && titleIn(spec.title, width - EDGES),
    autosize: { type: "fit-x", contains: "padding" },
  };
}

/** A title that is cut where its room ends, and a subtitle in lines that fit it. */
function titleIn(title, room) {
  if (!title.subtitle) return { ...title, limit: room };
  const lines = [""];
  for (const word of [title.subtitle].flat().join(" ").split(" ")) {
    if ((lines.at(-1).length + word.length) * LETTER > room && lines.at(-1)) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return { ...title, subtitle: lines, limit: room };
}

/** A part of a specification with legends of as many columns as there is room for. */
function narrowed(part, width) {
  if (Array.isArray(part)) return part.map((one) => narrowed(one, width));
  if (!part || typeof part !== "object") return part;
  if (part.legend?.columns) return { ...part, legend: legendIn(part, width - EDGES - AXIS) };
  const inner = ([key, v]) => [key, key === "datasets" || key === "data" ? v : narrowed(v, width)];
  return Object.fromEntries(Object.entries(part).map(inner));
}

function legendIn({ legend, scale }, room) {
  const names = legend.values ?? scale.domain;
  const longest = Math.max(...names.map((name) => `${name}`.length));
  const most = Math.max(1, Math.floor(room / (longest * LETTER + SYMBOL)));
  const columns = Math.min(legend.columns, most);
  const titleOrient = columns < names.length ? "top" : legend.titleOrient;
  return { ...legend, columns, titleOrient, labelLimit: Math.min(legend.labelLimit ?? room, room - SYMBOL) };
}

/** The space that a panel will take, until it is drawn: what stands below does not move. */
function hold(box, panel) {
  box.style.minHeight = `${box.offsetHeight || (panel.height ?? 225) + AROUND}px`;
}

/** Draw panels into an element, again whenever the theme or the width changes. Resolves to `move(name, rows)`, which puts
 * rows in the place of a named table. */
export async function draw(element, panels, { label, wide = false } = {}) {
  for (const known of charts.keys()) if (!known.isConnected) forget(known);
  const before = charts.get(element);
  const same = before?.boxes.length === panels.length;
  const boxes = same ? before.boxes : panels.map(() => h("div", { class: wide ? "panel wide" : "panel" }));
  if (!same) element.replaceChildren(...boxes);
  element.classList.add("chart");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  for (const [i, box] of boxes.entries()) hold(box, panels[i]);
  const moved = new Map(); // table → the rows that were put there
  const mine = { boxes, views: [], paint, painted: before?.painted ?? Promise.resolve() };
  await vega();
  forget(element);
  charts.set(element, mine);

  /** One after the other: what is asked for last is what stays. */
  function paint() {
    mine.painted = mine.painted.catch(() => {}).then(paintNow);
    return mine.painted;
  }

  async function paintNow() {
    if (charts.get(element) !== mine) return;
    mine.width = element.clientWidth;
    for (const [i, panel] of panels.entries()) {
      const room = boxes[i].clientWidth || 360;
      const spec = wide && typeof panel.width === "number" ? { ...panel, width: room } : panel;
      hold(boxes[i], panel);
      const { view } = await window.vegaEmbed(boxes[i], fitted(await coloured(spec), room), EMBED);
      boxes[i].style.minHeight = "";
      mine.views[i]?.finalize();
      mine.views[i] = view;
    }
    if (charts.get(element) !== mine) release(mine); // let go of while it was drawn
    else for (const [name, rows] of moved) put(name, rows);
  }

  function put(name, rows) {
    moved.set(name, rows);
    for (const view of mine.views) view.data(name, rows).run();
  }

  await paint();
  return put;
}
