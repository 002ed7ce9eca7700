// The shell: which page an address means, the part of the study it is about, and the pulse of a study that runs.

import { ApiError, get, search } from "./api.js";
import { fill, h } from "./dom.js";
import { plural } from "./format.js";
import { notice } from "./widgets.js";

const PULSE = 1500;
const PAGES = ["plan", "study", "run", "claims", "compare", "api"];
const main = document.querySelector("#main");
const live = document.querySelector("#live");

let page = null; // {leave: AbortController, refresh?, settled?: drawn, or failed to be}
let about = null;
let version = null; // of the files that `about` tells of
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
  history.replaceState(null, "", location.pathname + search({ ...parameters(), ...changes }));
  shown = here();
}

/** Go to another address of the app without loading it anew. A control that led there and is on the new page too has
 * the focus again. */
async function go(href) {
  const label = document.activeElement?.labels?.[0]?.textContent;
  history.pushState(null, "", href);
  await show();
  if (!label || document.activeElement !== document.body) return;
  [...main.querySelectorAll("select")].find((control) => control.labels[0]?.textContent === label)?.focus();
}

async function show() {
  shown = here();
  page?.leave.abort();
  const leave = new AbortController();
  const mine = (page = { leave });
  let name = location.pathname.slice(1);
  const part = parameters().part;
  announce(name, part);
  try {
    if (about === null || about.part !== (part ?? about.parts[0].part)) await learn(part, leave.signal);
    header();
    if (!PAGES.includes(name)) {
      name = about.unplanned ? "study" : "plan"; // begin where there is something to see
      history.replaceState(null, "", `/${name}${location.search}`);
      shown = here();
      announce(name, part);
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
  mine.settled = true;
}

/** What is served of a part. Where there is no such part, of the first one, so that another can be chosen: parts come,
 * go and get other names while a study runs. */
async function learn(part, signal) {
  const ask = async (named) => {
    about = (await get("about", named, { signal })).data;
    version = about.version;
  };
  try {
    await ask({ part });
  } catch (error) {
    if (part === undefined || !(error instanceof ApiError)) throw error;
    await ask({});
    announce(location.pathname.slice(1));
    header();
    throw error;
  }
}

/** Say which page this is, and keep the part in the links to the others. */
function announce(name, part) {
  if (!PAGES.includes(name)) return;
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    link.href = `/${link.dataset.page}${search({ part })}`;
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
  go(location.pathname + search({ part: event.target.value }));
});

/** Ask whether the files have changed; a page that shows them draws itself again. What is asked for a page ends with
 * it: an answer that comes late is of another part. */
async function pulse() {
  if (document.hidden || !page.settled) return;
  const { signal } = page.leave;
  try {
    const data = await state(signal);
    if (data === null) return void (await show());
    beat(data.status);
    if (version !== data.version) {
      await learn(about?.part, signal);
      if (parameters().part === undefined && about.parts[0].part !== about.part) stay();
      header();
      await (page.refresh ?? show)(about);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    live.className = "live gone";
    live.textContent = "not there";
    live.title = error.message;
    version = "gone"; // whatever comes back is new
  }
}

/** The state of the part that is shown; null where the study is there and the part is not, or not any more. */
async function state(signal) {
  try {
    return (await get("pulse", { part: about?.part }, { signal })).data;
  } catch (error) {
    if (!about || !(error instanceof ApiError)) throw error;
    const { parts } = (await get("about", {}, { signal })).data; // which fails where the study is gone
    if (parts.some(({ part }) => part === about.part)) throw error;
    about = null;
    return null;
  }
}

/** Name the part in the address and the links: another one has become the first, which stands where none is named. */
function stay() {
  remember({ part: about.part });
  announce(location.pathname.slice(1), about.part);
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
