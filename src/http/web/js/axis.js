// The ticks of an axis of bytes, or of numbers.

/** Steps within a unit. Neighbours differ by about a factor of 2, so that there are two steps to the largest value. */
const STEPS = [1, 2, 2.5, 5, 10, 20, 25, 50, 100, 200, 250, 500];
/** More ticks would be closer together than their texts are high. */
const MOST = 4;
/** A tick above the largest value is worth this share of the height. */
const ROOM = 1.2;

/**
 * The ticks for values up to `most`, beginning with 0: at least three, one of them near the largest value.
 * @returns {{ ticks: number[], end: number }} and where the axis ends
 */
export function ticksTo(/** @type {number} */ most, /** @type {import("./kinds.js").Unit} */ unit) {
  const largest = Math.max(2, most);
  const step = stepFor(largest / MOST, unit === "bytes" ? 1024 : 1000);
  const above = step * Math.ceil(largest / step);
  const end = above <= largest * ROOM ? above : largest * 1.04;
  const ticks = [];
  for (let tick = 0; tick <= end; tick += step) ticks.push(tick);
  return { ticks, end };
}

/** The smallest step that is not below this number; units are powers of the base. */
function stepFor(/** @type {number} */ least, /** @type {number} */ base) {
  for (let unit = 1; ; unit *= base) {
    const found = STEPS.find((step) => step * unit >= least);
    if (found !== undefined) return found * unit;
  }
}
