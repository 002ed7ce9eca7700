// Numbers as the commands print them.

/** Compute with three digits and a suffix, or a power of ten where there is no suffix for it: 1.27M, 2.5e15. */
export function number(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const rounded = Number(x.toPrecision(3));
  if (Math.abs(rounded) >= 1e15) return rounded.toExponential().replace("+", "");
  for (const [size, suffix] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (Math.abs(rounded) >= size) return `${Number((rounded / size).toPrecision(3))}${suffix}`;
  }
  return `${rounded}`;
}

/** A reward: three places, no leading zero. */
export function value(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const text = x.toFixed(3);
  return Math.abs(x) < 1 ? text.replace("0.", ".") : text;
}

export const pair = (interval) => (interval ? `${value(interval[0])}–${value(interval[1])}` : "–");
export const whole = (x) => (x === null || x === undefined ? "–" : x.toLocaleString("en-US"));
export const percent = (x) => `${Math.round(100 * x)}%`;
export const rate = (x) =>
  x === null || x === undefined ? "–" : x === 0 ? "0" : x < 0.001 ? x.toExponential(1) : `${Number(x.toPrecision(3))}`;
export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
/** A unit of compute as a reader says it. */
export const unitName = (unit) => ({ gpu_hours: "GPU-hours", steps: "update steps" })[unit] ?? unit;
