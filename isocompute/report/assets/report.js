// Tables sort by their headings; figures give their data. Nothing is fetched.
"use strict";

const numeric = (text) => {
  const match = /^[≤≥ ]*(-?[\d.]+(?:e\d+)?)([kMBT%]?)/.exec(text.replace("−", "-"));
  if (!match) return NaN;
  return parseFloat(match[1]) * ({ k: 1e3, M: 1e6, B: 1e9, T: 1e12 }[match[2]] || 1);
};

const compare = (a, b) => {
  const [x, y] = [numeric(a), numeric(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return a.localeCompare(b, undefined, { numeric: true });
};

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (falls ? -1 : 1) * compare(a.cells[column].textContent, b.cells[column].textContent));
      table.tBodies[0].append(...rows);
    });
  });
}

for (const button of document.querySelectorAll("[data-download]")) {
  button.addEventListener("click", () => {
    const name = button.dataset.download;
    const text = document.getElementById(`data-${name}`).textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `${name}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
