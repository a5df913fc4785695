// Sort orders: a column's name, with a leading "-" for descending order.

/** @template T @typedef {{ name: string, by?: (row: T) => number | string }} Sortable */

/** Compares two numbers or two texts. */
export function compare(/** @type {number | string} */ a, /** @type {number | string} */ b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The column and the direction of a sort order. */
export function parseOrder(/** @type {string} */ order) {
  const descending = order.startsWith("-");
  return { name: descending ? order.slice(1) : order, descending };
}

/** Reverses a comparison for descending order. @template T @param {(a: T, b: T) => number} compareRows @returns {(a: T, b: T) => number} */
export function directed(compareRows, /** @type {boolean} */ descending) {
  return descending ? (a, b) => compareRows(b, a) : compareRows;
}

/**
 * The order, if it names one of the columns that can be sorted; otherwise the fallback.
 * @param {Sortable<any>[]} columns
 */
export function orderOr(columns, /** @type {string} */ order, /** @type {string} */ fallback) {
  return columns.some((column) => column.by && column.name === parseOrder(order).name) ? order : fallback;
}

/**
 * The rows in this order.
 * @template T
 * @param {T[]} rows
 * @param {Sortable<T>[]} columns
 */
export function sorted(rows, columns, /** @type {string} */ order) {
  const { name, descending } = parseOrder(order);
  const by = columns.find((column) => column.name === name)?.by;
  if (!by) return rows;
  return rows.slice().sort(directed((a, b) => compare(by(a), by(b)), descending));
}
