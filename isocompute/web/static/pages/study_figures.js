// The figures of a study by name: those that can be drawn, and, greyed, what the others need.

import { get } from "../api.js";
import { fill, h } from "../dom.js";

// The overview shows the first two of these that can be drawn: the sweep's own, else what any set of logs can show.
const FIRST = ["reward", "optimum", "recipes", "extrapolation", "records"];

const paperOf = ({ source }) => source.split(" ")[0] || "Other";
const CURVE = 4; // points
const known = { of: null, needs: new Map() }; // the answers for what was asked last

/** What is known of these runs, read so: figure → what it needs, null where it can be drawn. A study that runs changes
 * all the time, what it supports when a run of it gets a curve. */
export function needsOf(runs, query) {
  const of = JSON.stringify([runs.filter(({ points }) => points >= CURVE).map(({ run }) => run), query]);
  if (known.of !== of) Object.assign(known, { of, needs: new Map() });
  return known.needs;
}

/** All figures, those of the overview first. */
export function inOrder(figures) {
  const place = ({ name }) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return [...figures].sort((a, b) => place(a) - place(b)).map(({ name }) => name);
}

/** Without what stands in brackets, and the first clause only: the figure itself says all. */
function short(needs) {
  return needs
    .replaceAll(/ \([^)]*\)/g, "")
    .split(/[,:;]/)[0]
    .trim();
}

/** The list: `link` makes an address of a figure's name, `chosen` is the one that is shown. What is learned about the
 * figures puts it in another order, but never under a pointer or a focus: a link that goes away while it is pressed
 * leads nowhere. */
export function figureList(figures, { link, chosen }) {
  const entry = ({ name, title, source }, needs) =>
    h(
      "li",
      { class: needs ? "lacking" : null },
      h("a", { href: link(name), "aria-current": name === chosen ? "page" : null }, title),
      h("small", { title: needs ?? null }, needs ? short(needs) : source.replace(/^\S+ /, "")),
    );
  const lists = h("div");
  const order = (needs) => {
    const there = figures.filter(({ name }) => !needs.get(name));
    const papers = [...new Set(there.map(paperOf))];
    const lacking = figures.filter(({ name }) => needs.get(name));
    fill(
      lists,
      h("ul", {}, entry({ name: null, title: "Overview", source: "" }, null)),
      papers.map((paper) => [
        h("h2", {}, paper),
        h(
          "ul",
          {},
          there.filter((figure) => paperOf(figure) === paper).map((figure) => entry(figure, null)),
        ),
      ]),
      lacking.length
        ? [
            h("h2", {}, "These need"),
            h(
              "ul",
              {},
              lacking.map((figure) => entry(figure, needs.get(figure.name))),
            ),
          ]
        : null,
    );
  };
  const element = h(
    "nav",
    { class: "card figures", "aria-label": "Figures" },
    h("details", { open: innerWidth > 860 }, h("summary", {}, "Figures"), lists),
  );
  let waiting = null; // what was learned while somebody was at the list
  const show = (needs) => {
    waiting = needs;
    if (!lists.matches(":hover, :focus-within")) settle();
  };
  const settle = () => {
    if (waiting) order(waiting);
    waiting = null;
  };
  lists.addEventListener("pointerleave", () => lists.matches(":focus-within") || settle());
  lists.addEventListener("focusout", ({ relatedTarget }) => {
    if (!lists.contains(relatedTarget) && !lists.matches(":hover")) settle();
  });
  return { element, show };
}

/** Whether a figure can be drawn, asked once. */
export async function canDraw(name, needs, query, how) {
  if (!needs.has(name)) needs.set(name, (await get(`figures/${name}/needs`, query, how)).data.needs);
  return needs.get(name) === null;
}
