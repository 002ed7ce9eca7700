// Asking the server. An answer is the command's own JSON, with the command and its age in headers.

export class ApiError extends Error {}

/** `?…` of parameters; a list is repeated, and what is empty is left out, but for the part: the whole study's name is
 * empty. */
export function search(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) {
      const empty = one === null || one === undefined || one === false || (one === "" && name !== "part");
      if (!empty) query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `?${text}` : "";
}

/** `/api/path?…` of parameters. */
export function address(path, parameters = {}) {
  return `/api/${path}${search(parameters)}`;
}

/** The answer: {data, command, stale}. What is slow to make is waited for. */
export async function get(path, parameters = {}, { signal } = {}) {
  let response;
  try {
    response = await fetch(address(path, parameters), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The app does not answer: is its terminal still open? Start it again with isocompute web.");
  }
  const data = await response.json();
  if (!response.ok) throw new ApiError(data.error);
  const command = response.headers.get("Isocompute-Command");
  return {
    data,
    command: command === null ? null : decodeURIComponent(command),
    stale: response.headers.has("Isocompute-Stale"),
  };
}
