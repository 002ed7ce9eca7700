// The shell: which page an address means, the part of the study it is about, and the pulse of a study that runs.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { notice } from "./widgets.js";

const PULSE = 1500;
const PAGES = ["plan", "study", "run", "claims", "compare", "api"];
const main = document.querySelector("#main");
const live = document.querySelector("#live");

let page = null; // {refresh?, leave: AbortController}
let about = null;
let version = null;
let shown = null; // the address that is on the screen

const here = () => location.pathname + location.search;

/** The address's query as an object; a name that comes several times is a list. */
function parameters() {
  const out = {};
  for (const [name, value] of new URLSearchParams(location.search)) {
    out[name] = name in out ? [out[name], value].flat() : value;
  }
  return out;
}

/** Write the page's state into its address, so that it can be kept, sent and gone back to. */
function remember(changes) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...parameters(), ...changes })) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "" && one !== false) query.append(name, one);
    }
  }
  const text = query.toString();
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}`);
  shown = here();
}

/** Go to another address of the app without loading it anew. */
function go(href) {
  history.pushState(null, "", href);
  return show();
}

async function show() {
  shown = here();
  page?.leave.abort();
  const leave = new AbortController();
  const mine = (page = { leave });
  let name = location.pathname.slice(1);
  if (PAGES.includes(name)) announce(name);
  try {
    const part = parameters().part;
    if (about === null || (part !== undefined && about.part !== part))
      about = (await get("about", { part }, { signal: leave.signal })).data;
    header();
    if (!PAGES.includes(name)) {
      name = about.unplanned ? "study" : "plan"; // begin where there is something to see
      history.replaceState(null, "", `/${name}${location.search}`);
      shown = here();
      announce(name);
    }
    const { render } = await import(`./pages/${name}.js`);
    if (page !== mine) return;
    const root = h("div", { class: `page ${name}` });
    fill(main, root);
    mine.refresh = await render(root, {
      about,
      parameters: parameters(),
      remember,
      go,
      again: show,
      signal: leave.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") return;
    fill(main, h("h1", {}, document.title.split(" ·")[0]), notice(error.message, "empty"));
  }
}

/** Say which page this is, and keep the part in the links to the others. */
function announce(name) {
  const part = parameters().part;
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    link.href = `/${link.dataset.page}${part ? `?part=${encodeURIComponent(part)}` : ""}`;
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · isocompute`;
}

function header() {
  const label = document.querySelector("#part-label");
  const choice = document.querySelector("#part");
  label.hidden = about.parts.length < 2;
  fill(
    choice,
    about.parts.map(({ part, runs }) =>
      h("option", { value: part, selected: part === about.part }, `${part || "everything"} (${runs})`),
    ),
  );
  document.querySelector("#served").textContent = `${about.address} · ${plural(about.runs.length, "run")}`;
}

document.querySelector("#part").addEventListener("change", (event) => {
  // Runs, budgets and figures of one part mean nothing in another.
  go(`${location.pathname}?part=${encodeURIComponent(event.target.value)}`);
});

/** Ask whether the files have changed; a page that shows them draws itself again. */
async function pulse() {
  if (document.hidden) return;
  try {
    const { data } = await get("pulse", { part: about?.part });
    beat(data.status);
    if (version !== null && version !== data.version) {
      about = (await get("about", { part: about?.part })).data;
      header();
      await (page?.refresh ?? show)(about);
    }
    version = data.version;
  } catch (error) {
    if (error.name === "AbortError") return;
    live.className = "live gone";
    live.textContent = "not there";
    live.title = error.message;
    version = "gone"; // whatever comes back is new
  }
}

function beat(status) {
  live.title = "";
  if (status?.running) {
    live.className = "live on";
    live.textContent = `${status.finished}/${status.cells} cells, ${status.running} running`;
  } else {
    live.className = "live";
    live.textContent = status ? `${status.finished}/${status.cells} cells` : "";
  }
}

async function beating() {
  await pulse();
  setTimeout(beating, PULSE);
}

/** The link of this app that an event with the plain button of a mouse, a finger or a key is about. */
function linkOf(event) {
  const link = event.target.closest?.("a[href^='/']");
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  return link && plain && !link.hasAttribute("download") && !link.pathname.startsWith("/api/") ? link : null;
}

function follow(link) {
  go(link.getAttribute("href")).then(() => main.focus({ preventScroll: true }));
  scrollTo(0, 0);
}

let pressed = null; // a link, while it is held down
document.addEventListener("pointerdown", (event) => {
  pressed = linkOf(event);
});
document.addEventListener("pointercancel", () => {
  pressed = null;
});
document.addEventListener("pointerup", () => {
  if (pressed && !pressed.isConnected) follow(pressed); // drawn anew under the pointer: no click will come
  pressed = null;
});
document.addEventListener("click", (event) => {
  const link = linkOf(event);
  if (!link) return;
  event.preventDefault();
  follow(link);
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault(); // a page that was left before it was drawn
});
addEventListener("popstate", () => {
  if (here() !== shown) show();
}); // a jump inside the page is not another page

const button = document.querySelector("#theme");
button.addEventListener("click", async () => {
  const { isDark } = await import("./chart.js");
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    /* only this page, then */
  }
  document.dispatchEvent(new Event("theme"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

await show();
beating();
