// The ticks of an axis of bytes.

/** Steps within a unit. Neighbours differ by about a factor of 2, so that there are two steps to the largest value. */
const STEPS = [1, 2, 2.5, 5, 10, 20, 25, 50, 100, 200, 250, 500];
/** More ticks would be closer together than their texts are high. */
const MOST = 4;
/** A tick above the largest value is worth this share of the height. */
const ROOM = 1.2;

/**
 * The ticks for values up to `most` bytes, beginning with 0: at least three, one of them near the largest value.
 * @returns {{ ticks: number[], end: number }} and where the axis ends
 */
export function byteTicks(/** @type {number} */ most) {
  const largest = Math.max(2, most);
  const step = stepFor(largest / MOST);
  const above = step * Math.ceil(largest / step);
  const end = above <= largest * ROOM ? above : largest * 1.04;
  const ticks = [];
  for (let tick = 0; tick <= end; tick += step) ticks.push(tick);
  return { ticks, end };
}

/** The smallest step that is not below this number of bytes. */
function stepFor(/** @type {number} */ least) {
  for (let unit = 1; ; unit *= 1024) {
    const found = STEPS.find((step) => step * unit >= least);
    if (found !== undefined) return found * unit;
  }
}
