// Formats numbers. Byte units are powers of two, as in the kernel's figures.

/** @typedef {import("./kinds.js").Unit} Unit */

/** Half the width of a 95 % confidence interval, in standard errors. */
export const IN_95_PERCENT = 1.96;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Bytes with a unit: `12.3 MiB`. */
export function bytes(/** @type {number} */ count) {
  if (!Number.isFinite(count)) return "–";
  const sign = count < 0 ? "−" : "";
  let value = Math.abs(count);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = unit === 0 || value >= 1000 ? 0 : value >= 100 ? (Number.isInteger(value) ? 0 : 1) : value >= 10 ? 1 : 2;
  const text = Number.isInteger(value) ? String(value) : value.toFixed(digits);
  return `${sign}${text} ${UNITS[unit]}`;
}

/** A figure with its unit: `12.3 MiB`, or `1,234` for a count of objects. */
export function amount(/** @type {number} */ count, /** @type {Unit} */ unit) {
  return unit === "bytes" ? bytes(count) : number(count).replace("-", "−");
}

/** A change with its sign: `+12.3 MiB`, `±0`; for an estimate `~+12.3 MiB`, `+12.3 MiB ± 2 MiB` or `< ±40 KiB`, by the rules of {@link estimate}. */
export function signed(/** @type {number} */ count, error = 0, /** @type {Unit} */ unit = "bytes") {
  const margin = IN_95_PERCENT * (error || 0);
  if (margin > 0 && Math.abs(count) <= margin) return `< ±${amount(Math.ceil(Math.abs(count) + margin), unit)}`;
  const text = count === 0 ? "±0" : count > 0 ? `+${amount(count, unit)}` : amount(count, unit);
  if (!(margin > 0)) return text;
  return 10 * margin > Math.abs(count) ? `${text} ± ${amount(Math.ceil(margin), unit)}` : `~${text}`;
}

/** An exact figure, for tooltips: `12,345,678 bytes`. */
export function exact(/** @type {number} */ count, /** @type {Unit} */ unit = "bytes") {
  return `${number(count)} ${unit}`;
}

/**
 * A figure that may be an estimate: `12.3 MiB` is exact, `~12.3 MiB` an estimate, `12.3 MiB ± 2 MiB` an estimate with an error
 * above a tenth of it, `< 40 KiB` an estimate that is not larger than its error.
 */
export function estimate(/** @type {number} */ count, /** @type {number} */ error, /** @type {Unit} */ unit = "bytes") {
  const margin = IN_95_PERCENT * (error || 0);
  if (!(margin > 0) || count === 0) return amount(count, unit);
  return 10 * margin > count ? estimateWithError(count, error, unit) : `~${amount(count, unit)}`;
}

/** Like {@link estimate}, always with the error: `12.3 MiB ± 40 KiB`. */
export function estimateWithError(/** @type {number} */ count, /** @type {number} */ error, /** @type {Unit} */ unit = "bytes") {
  const margin = IN_95_PERCENT * (error || 0);
  if (!(margin > 0)) return amount(count, unit);
  return count > margin ? `${amount(count, unit)} ± ${amount(Math.ceil(margin), unit)}` : `< ${amount(Math.ceil(count + margin), unit)}`;
}

/** An exact figure and, for an estimate, its error, for tooltips. */
export function exactWithError(/** @type {number} */ count, /** @type {number} */ error, /** @type {Unit} */ unit = "bytes") {
  return error > 0 ? `${exact(count, unit)} ± ${amount(Math.ceil(IN_95_PERCENT * error), unit)} (with 95 % confidence; standard error ${amount(error, unit)})` : exact(count, unit);
}

/** A whole number with thousands separators. */
export function number(/** @type {number} */ count) {
  return Number.isFinite(count) ? count.toLocaleString("en-US") : "–";
}

/** A share of a whole: `12.3 %`. */
export function percent(/** @type {number} */ part, /** @type {number} */ whole) {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  return `${share !== 0 && Math.abs(share) < 0.1 ? (share < 0 ? ">−0.1" : "<0.1") : share.toFixed(1)} %`;
}

/** The time of day of a time in milliseconds since 1970. */
export function clock(/** @type {number} */ ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** A duration of milliseconds: `1 h 5 min`. */
export function duration(/** @type {number} */ ms) {
  if (!Number.isFinite(ms)) return "–";
  const s = Math.max(0, ms / 1000);
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 100) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
}

/** The last component of a path. */
export function baseName(/** @type {string} */ path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Parses a threshold: `256`, `256k`, `1.5 MiB`; NaN if invalid. Plain numbers are KiB. Returns bytes. */
export function parseBytes(/** @type {string} */ text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*$/i.exec(text);
  if (!found) return NaN;
  const unit = found[2].toLowerCase();
  if (!unit && found[3]) return Math.round(Number(found[1]));
  const power = unit ? "kmgt".indexOf(unit) + 1 : 1;
  return Math.round(Number(found[1]) * 1024 ** power);
}
