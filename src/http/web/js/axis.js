// The ticks of an axis of bytes or of numbers.

/** Steps within a unit. Consecutive steps differ by about a factor of 2, so that there are at least two steps up to the largest value. */
const STEPS = [1, 2, 2.5, 5, 10, 20, 25, 50, 100, 200, 250, 500];
/** Maximum number of ticks above 0: the labels of more ticks would overlap. */
const MAX_TICKS = 4;
/** Maximum end of the axis, relative to the largest value: a tick above the largest value may extend the axis this far. */
const MAX_END = 1.2;

/**
 * The ticks for values up to `max`, beginning with 0: at least three, one of them near the largest value.
 * @returns {{ ticks: number[], end: number }} the ticks and the end of the axis
 */
export function ticksTo(/** @type {number} */ max, /** @type {import("./kinds.js").Unit} */ unit) {
  const largest = Math.max(2, max);
  const step = stepFor(largest / MAX_TICKS, unit === "bytes" ? 1024 : 1000);
  const above = step * Math.ceil(largest / step);
  const end = above <= largest * MAX_END ? above : largest * 1.04;
  const ticks = [];
  for (let tick = 0; tick <= end; tick += step) ticks.push(tick);
  return { ticks, end };
}

/** The smallest step that is at least `min`; units are powers of `base`. */
function stepFor(/** @type {number} */ min, /** @type {number} */ base) {
  for (let unit = 1; ; unit *= base) {
    const found = STEPS.find((step) => step * unit >= min);
    if (found !== undefined) return found * unit;
  }
}
