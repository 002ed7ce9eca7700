// The API, from its own description.

import { fill, h } from "../dom.js";
import { table, withCode } from "../widgets.js";

/** Draws once: the API does not change with the study. */
export async function render(root, { signal }) {
  const schema = await (await fetch("/api/openapi.json", { signal })).json();
  const type = (s) =>
    s.enum?.join(" | ") ??
    s.anyOf
      ?.map(type)
      .filter((t) => t !== "null")
      .join(" | ") ??
    s.type ??
    "";
  fill(
    root,
    h("h1", {}, "API"),
    h("p", {}, withCode(schema.info.description)),
    h("p", {}, h("a", { href: "/api/openapi.json", download: "openapi.json" }, "OpenAPI description")),
    Object.entries(schema.paths).map(([path, { get }]) =>
      h(
        "section",
        { class: "card" },
        h("h2", {}, h("code", {}, `GET ${path}`)),
        h("p", {}, withCode(get.description ?? "")),
        get.parameters?.length
          ? table(
              [
                ["parameter", (p) => p.name],
                ["type", (p) => type(p.schema)],
                ["default", (p) => (p.required ? "required" : (p.schema.default ?? "–"))],
                ["", (p) => p.description ?? "", "text"],
              ],
              get.parameters,
              { caption: `Parameters of ${path}` },
            )
          : null,
      ),
    ),
  );
  return () => {};
}
