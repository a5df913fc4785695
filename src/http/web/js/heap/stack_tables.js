// The heap by stack as plain tables: an estimate becomes two columns, the figure and its standard error.

/** @typedef {Record<string, any>} Row */

/** The kinds of memory without a stack. */
const REST_KINDS = /** @type {Record<string, string>} */ ({
  before_sampling: "in use, allocated before sampling began",
  not_sampled: "in use, not sampled although sampling began with the program",
  too_few_samples: "in use, too few samples",
  allocator_own: "the allocator’s own",
  python: "Python’s own allocator",
  other: "outside the heap",
});

/** The unreachable chunks that lead to others, if no stack is known. */
const HEADS = /** @type {Record<string, string>} */ ({ itself: "nothing refers to it", not_sampled: "a chunk that was not sampled" });

/** Splits the estimates of a row. @returns {Row} */
function split(/** @type {Row} */ row) {
  return Object.fromEntries(Object.entries(row).flatMap(([name, value]) => {
    const isEstimate = value && typeof value === "object" && "error" in value;
    return isEstimate ? [[name, value.bytes ?? value.number], [`${name}_error`, value.error]] : [[name, value]];
  }));
}

function sizeRange(/** @type {number[] | null} */ sizes) {
  return sizes ? `, chunks of ${sizes[0]} to ${sizes[1]} bytes` : "";
}

/** The tables of a reply's `by_stack`. @returns {Record<string, any> | null} */
export function stackTables(/** @type {Record<string, any> | null | undefined} */ found) {
  if (!found) return null;
  return {
    ...found,
    rows: found.rows.map(split),
    leaks: found.leaks.map((/** @type {Row} */ row) => split({ ...row, head: row.head.stack ?? HEADS[row.head.kind] })),
    rest: found.rest.map((/** @type {Row} */ row) => {
      const name = row.name ? `: ${row.name}` : "";
      const unreachable = row.unreachable ? ", unreachable" : "";
      const { resident, pinned } = row;
      return split({ what: `${REST_KINDS[row.kind] ?? row.kind}${name}${sizeRange(row.sizes)}${unreachable}`, resident, pinned });
    }),
  };
}
