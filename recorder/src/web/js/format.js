// Numbers, sizes, times and texts for display.

const two = (/** @type {number} */ value) => String(value).padStart(2, "0");

/** A whole number with separators: `12,345`. */
export const number = (/** @type {number} */ value) => value.toLocaleString("en-GB");

/** A count with its noun: `1 peer`, `2 peers`. */
export const count = (/** @type {number} */ value, /** @type {string} */ noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A size in bytes: `512 B`, `1.2 KiB`. */
export function size(/** @type {number} */ bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${unit && bytes < 99.95 ? bytes.toFixed(1) : number(Math.round(bytes))} ${units[unit]}`;
}

/** Milliseconds of a time in nanoseconds, a decimal string. */
export const msOf = (/** @type {string} */ ns) => Number(BigInt(ns) / 1_000_000n);

/** The local date: `2026-11-30`. */
export function day(/** @type {number} */ ms) {
  const time = new Date(ms);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
}

/** The local time: `18:02:11`. */
export function clock(/** @type {number} */ ms) {
  const time = new Date(ms);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

/** The local time with milliseconds. */
export const exactClock = (/** @type {number} */ ms) => `${clock(ms)}.${String(ms % 1000).padStart(3, "0")}`;

/** The local time, with the date unless it is today's. */
export const when = (/** @type {number} */ ms) => (day(ms) === day(Date.now()) ? clock(ms) : `${day(ms)} ${clock(ms)}`);

/** Date and time with nanoseconds, of a decimal string. */
export function fullTime(/** @type {string} */ ns) {
  const ms = msOf(ns);
  return `${day(ms)} ${clock(ms)}.${ns.slice(-9).padStart(9, "0")}`;
}

/** A duration: `4 min 3 s`. */
export function duration(/** @type {number} */ ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Control characters, and characters that reorder or hide text. */
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A text of at most so many characters in which control characters, and those that reorder or hide text, are visible. */
export function visible(/** @type {string} */ text, most = Infinity) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(INVISIBLE, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Compares times in nanoseconds, decimal strings. */
export const compareTimes = (/** @type {string} */ a, /** @type {string} */ b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
