// Elements from data. Text is always text: a run may be named anything, and nothing here parses HTML.

const SVG = new Set(["svg", "rect", "line", "circle", "path", "polyline", "title"]);

/** An element: h("a", {href: "/run", class: "quiet"}, "text", child, …). `on…` is a listener, null leaves out. */
export function h(tag, attributes = {}, ...children) {
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Put these in the place of what is there. What a reader did to it (a focus, details that were opened, a table that
 * was scrolled) is done to what stands in its place. */
export function fill(element, ...children) {
  const again = doneTo(element);
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  again();
  return element;
}

/** What an element is called: a link by where it leads, all else by its words, in which numbers may change. */
function called(element) {
  const words = element.labels?.[0]?.textContent ?? element.getAttribute("aria-label") ?? element.textContent;
  const name = element.dataset.key ?? element.getAttribute("href") ?? words.replaceAll(/\d+/g, "0");
  return `${element.tagName} ${name}`;
}

function doneTo(element) {
  const focused = document.activeElement;
  const all = (selector) => [...element.querySelectorAll(selector)];
  const alike = (name) => all(name.split(" ")[0]).filter((one) => called(one) === name);
  const focus = focused !== element && element.contains(focused) ? called(focused) : null;
  const place = focus === null ? -1 : alike(focus).indexOf(focused);
  const opened = new Map(all("details").map((details) => [called(details.firstChild), details.open]));
  const moved = all(".scroll").filter((region) => region.scrollLeft);
  const scrolled = new Map(moved.map((region) => [called(region), region.scrollLeft]));
  return () => {
    for (const details of all("details")) details.open = opened.get(called(details.firstChild)) ?? details.open;
    if (moved.length) for (const region of all(".scroll")) region.scrollLeft = scrolled.get(called(region)) ?? 0;
    if (focus === null || element.contains(document.activeElement)) return;
    const again = element.contains(focused) ? focused : alike(focus)[place];
    again?.focus({ preventScroll: true });
  };
}
