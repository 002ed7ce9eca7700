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
const BESIDE = 200; // what may stand beside the plot itself
const charts = new Map(); // those on the page: element → {paint, views}
let loading = null;

document.addEventListener("theme", () => {
  for (const [element, { paint }] of charts) {
    if (element.isConnected) paint();
    else forget(element);
  }
});

/** Let go of an element's charts: a view keeps listeners of its own. */
function forget(element) {
  for (const view of charts.get(element)?.views ?? []) view?.finalize();
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

// The light palette's colours and what stands for them on a dark page; n keeps its order from dim to bright.
const DARK = {
  "#1f2328": "#e6e9ec",
  "#57606a": "#a3adb8",
  "#e7e9ec": "#2b3138",
  "#8c959f": "#6b7580",
  "#c44e00": "#ff9d5c",
  "#767676": "#a9b1ba",
  "#000000": "#e6e9ec",
  black: "#e6e9ec",
  "#440154": "#8f7fe0",
  "#472d7b": "#7f93e8",
  "#3b528b": "#69a6ea",
  "#2c728e": "#4fb7dc",
  "#21918c": "#3fc6bd",
  "#28ae80": "#55d396",
  "#5ec962": "#8edd6d",
  "#addc30": "#c3e352",
  "#d8c500": "#f2df55",
  "#0072b2": "#4594dd",
  "#56b4e9": "#b4e0fb",
  "#d55e00": "#ff9150",
  "#009e73": "#37c79c",
  "#8c6d31": "#c9a55c",
};

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function coloured(spec) {
  if (!isDark()) return spec;
  const change = (x) => {
    if (typeof x === "string") return DARK[x] ?? x;
    if (Array.isArray(x)) return x.map(change);
    if (x && typeof x === "object") {
      return Object.fromEntries(Object.entries(x).map(([key, v]) => [key, key === "datasets" ? v : change(v)]));
    }
    return x;
  };
  return change(spec);
}

/** A panel as wide as there is room, but not much wider than it is drawn at; concatenated ones keep their size and
 * scroll. Its width here is that of the whole, names of rows and all. */
function fitted(spec, width) {
  if (typeof spec.width !== "number") return spec;
  return {
    ...spec,
    width: Math.min(spec.width + BESIDE, Math.max(180, width)),
    autosize: { type: "fit-x", contains: "padding" },
  };
}

/** Draw panels into an element, again whenever the theme changes. Resolves to the views, for `move`. */
export async function draw(element, panels, { label, wide = false } = {}) {
  await vega();
  const boxes = panels.map(() => h("div", { class: wide ? "panel wide" : "panel" }));
  element.replaceChildren(...boxes);
  element.classList.add("chart");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  const views = [];
  const paint = async () => {
    for (const [i, panel] of panels.entries()) {
      const room = boxes[i].clientWidth || 360;
      const spec = wide && typeof panel.width === "number" ? { ...panel, width: room } : panel;
      const made = await window.vegaEmbed(boxes[i], fitted(coloured(spec), room), EMBED);
      views[i]?.finalize();
      views[i] = made.view;
    }
  };
  forget(element);
  charts.set(element, { paint, views });
  await paint();
  return views;
}

/** Put rows in the place of a named table of a drawn chart. */
export function move(view, name, rows) {
  view.data(name, rows).run();
}
