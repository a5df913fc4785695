// Words for the tables of a heap snapshot, by their names in the API.

import { bytes, number, percent } from "../format.js";

/** @typedef {Record<string, any>} Heap */
/**
 * @typedef {object} Words
 * @property {string} title
 * @property {string} about
 * @property {(heap: Heap) => string} [more] what the report says beside the table
 * @property {(heap: Heap) => number} [left] number of rows that are not listed
 * @property {string} [first] the column that the table is sorted by
 * @property {Record<string, [string, string]>} [columns] label and meaning of each column, in display order
 * @property {Record<string, Record<string, string>>} [values] words for values, by column
 */

/** What the bytes of a heap are. */
export const WHATS = /** @type {Record<string, string>} */ ({
  live: "in use",
  live_mapped: "in use, with mappings of their own",
  thread_cache: "free, in threads’ caches",
  fast: "free, in fast bins",
  unsorted: "free, not sorted yet",
  small: "free, in small bins",
  large: "free, in large bins",
  top: "free, at the ends of arenas",
  overhead: "the allocator’s own",
  jemalloc_live: "in use, jemalloc’s slabs",
  jemalloc_large: "in use, jemalloc’s large regions",
  jemalloc_cache: "free, in jemalloc’s caches of threads",
  jemalloc_free: "free, in jemalloc’s slabs",
  jemalloc_dirty: "free, jemalloc’s dirty pages",
  jemalloc_muzzy: "free, jemalloc’s muzzy pages",
  jemalloc_retained: "free, jemalloc’s retained pages",
  jemalloc_overhead: "jemalloc’s own",
  python_live: "in use, Python’s blocks",
  python_free: "free, Python’s blocks",
  python_pools: "free, Python’s pools",
  python_overhead: "Python’s allocator’s own",
});

/** What a type is known by. */
export const KINDS = /** @type {Record<string, string>} */ ({ class: "C++", trait_object: "Rust", text: "text", pointers: "addresses", zeroes: "zeroes", unknown: "unknown" });

/** What blocks of Python’s memory are. */
export const ROLES = /** @type {Record<string, string>} */ ({ object: "objects", memory: "their memory", kept: "freed objects, kept for reuse", unknown: "not known" });

/** Private memory that is not in a snapshot. */
export const MISSING = /** @type {Record<string, string>} */ ({
  not_forked: "memory that a forked child does not have (MADV_DONTFORK)",
  wiped: "memory that is empty in a forked child (MADV_WIPEONFORK)",
  unread: "memory that the kernel did not let memprof read",
});

const ROOTS = { variable: "variable", thread: "thread", mapping: "mapping", missing: "memory that the snapshot lacks", other: "roots that were too many to be told apart" };

/** A root in one text. */
export function rootName(/** @type {string} */ kind, /** @type {string} */ name) {
  return kind === "variable" ? `variable ${name}` : kind === "other" ? ROOTS.other : name;
}

/** The tables, in display order. */
export const WORDS = /** @type {Record<string, Words>} */ ({
  rows: {
    title: "The heap by kind", about: "Chunks in use, free ones by where the allocator keeps them, and its own bytes.", first: "resident",
    columns: { what: ["kind", ""], chunks: ["chunks", "Number of chunks"], bytes: ["bytes", "Bytes, resident or not"], resident: ["resident", "Bytes in RAM"] },
    values: { what: WHATS },
  },
  others: {
    title: "Other anonymous memory", about: "Outside the heap. With the heap’s resident bytes it adds up to the process’s anonymous memory.", first: "resident",
    columns: { category: ["kind", ""], resident: ["resident", "Bytes in RAM"] },
  },
  "types.rows": {
    title: "Objects by type", about: "Each chunk in use has one type. Roots: what leads to the most bytes of a type first.", first: "bytes",
    more: ({ types }) => `Of their bytes, ${percent(types.named, types.bytes)} have a type with a name; ${percent(types.recognized, types.bytes)} look like text, addresses or zeroes.`,
    left: ({ types }) => types.left_out,
    columns: { kind: ["known as", ""], name: ["type", ""], bytes: ["bytes", "Bytes of their contents"], count: ["objects", "Number of objects"], unreachable: ["unreachable", "Number of those that nothing refers to"], unreachable_bytes: ["their bytes", "Bytes of the unreachable ones"], example: ["example", "Address of one of them: of an unreachable one, if there is any"], retained_by: ["roots", "What leads to the most bytes of them first"] },
    values: { kind: KINDS },
  },
  "by_stack.rows": {
    title: "By stack", about: "Who allocated what is in use: estimates from samples with their standard errors, corrected by the snapshot. Resident, pinned and unreachable bytes of all stacks, with the tables of free pages and of what has no stack, add up to the process’s anonymous memory.", first: "resident",
    more: ({ by_stack: { samples } }) => `${number(samples.joined)} samples; ${number(samples.gone)} were left out because their chunk is no longer in use.${samples.lost + samples.unsent > 0 ? ` ${number(samples.lost)} were not kept, as there was no room for them, and ${number(samples.unsent)} did not reach memprof: their chunks have no stack.` : ""}`,
    left: ({ by_stack }) => by_stack.left_out,
    columns: { stack: ["stack", "The innermost function first"], live: ["live (estimated)", "Requested bytes in use, resident or not"], resident: ["resident", "Resident bytes of reachable chunks, with headers"], overhead: ["overhead", "Those of them that are headers, or were added to the requested size"], pinned: ["waste: pinned", "Resident free bytes on pages that these chunks keep in memory. 1.96 standard errors contain the truth in 83 to 90 % of cases, not in 95 %: few chunks may pin most"], pinned_beside_samples: ["beside samples", "Those of them on the pages of the sampled chunks themselves"], unreachable: ["unreachable", "Resident bytes of chunks that nothing refers to"], samples: ["samples", "Number of live samples"], unreachable_samples: ["unreachable ones", "Number of live samples of unreachable chunks"] },
  },
  "by_stack.leaks": {
    title: "Unreachable by stack", about: "Chunks that nothing refers to, by who allocated them and by what leads to them.", first: "requested",
    left: ({ by_stack }) => by_stack.leaks_left_out,
    columns: { stack: ["stack", "The innermost function first"], head: ["led to by", "The stack of an unreachable chunk that leads to them"], requested: ["requested", "Requested bytes, resident or not"], allocations: ["allocations", "Number of chunks"], unreachable: ["resident", "Resident bytes, with headers"], samples: ["samples", "Number of live samples"], example: ["example", "Address of a chunk that leads to them"] },
  },
  "by_stack.free_pages": {
    title: "Free pages", about: "Resident pages of the heap without a chunk in use, by the stacks that brought them in, which may not be those that freed them.", first: "resident",
    columns: { grown_by: ["brought in by", "The innermost function first"], resident: ["resident", "Free bytes"] },
    values: { grown_by: { null: "not known" } },
  },
  "by_stack.rest": {
    title: "Without a stack", about: "What is no stack’s, so that all adds up.", first: "resident",
    columns: { what: ["what", ""], resident: ["resident", "Resident bytes"], pinned: ["pinned", "Resident free bytes on pages that these chunks keep in memory"] },
  },
  "grown_by.rows": {
    title: "Grown by", about: "The stacks whose first touches brought in the heap’s resident pages: who made the heap grow, not who owns the objects there now.", first: "bytes",
    left: ({ grown_by }) => grown_by.left_out,
    columns: { stack: ["stack", "The innermost function first"], bytes: ["bytes", "Resident bytes"] },
  },
  "retained.roots": {
    title: "Roots", about: "By what they lead to first: each object is counted under the nearest root. Conservative: any word counts as an address.", first: "bytes",
    left: ({ retained }) => retained.left_out,
    columns: { kind: ["kind", ""], name: ["root", ""], bytes: ["bytes", "Bytes of the objects that it leads to first"], count: ["objects", "Their number"], address: ["address", "Its address; none for a thread"] },
    values: { kind: ROOTS },
  },
  arenas: {
    title: "Arenas", about: "The same bytes by arena: glibc makes further ones for threads. Resident or not, but for the resident column.", first: "resident",
    columns: { name: ["arena", ""], resident: ["resident", "Bytes in RAM"], live: ["in use", "Contents of chunks in use"], free: ["free", "Free bytes"], overhead: ["own", "The allocator’s own bytes"], chunks: ["chunks", "Number of chunks in use"] },
  },
  sizes: {
    title: "Chunks by size", about: "With their headers. Pinned: free bytes on the pages that chunks of this size keep in memory.", first: "live_bytes",
    columns: { live: ["in use", "Number of chunks in use"], live_bytes: ["bytes in use", "Their bytes, with headers"], free: ["free", "Number of free chunks, without the arenas’ ends"], free_bytes: ["free bytes", "Their bytes"], pinned: ["pinned", "Free bytes on pages that chunks of this size keep in memory: a page’s free bytes, divided among its chunks in use"] },
  },
  largest: {
    title: "Largest chunks in use", about: "By the size of their contents.", first: "bytes",
    columns: { address: ["address", "Address of the contents"], bytes: ["bytes", "Size of the contents"], resident: ["resident", "Bytes in RAM"], root: ["root", "What leads to it first"] },
  },
  "unreachable.heads": {
    title: "Unreachable chunks", about: "No register, stack, variable or other private memory has an address in them. Conservative: any word counts as an address; pointers in shared memory or in disguise are not seen. A chunk is listed with all that only it leads to.", first: "bytes",
    more: ({ unreachable }) => `${number(unreachable.chunks)} chunks, ${bytes(unreachable.bytes)}.`,
    left: ({ unreachable }) => unreachable.heads_left_out,
    columns: { bytes: ["bytes", "This chunk and those that only it leads to"], chunks: ["chunks", "Number of these chunks"], own: ["its bytes", "Size of its own contents"], address: ["address", "Address of its contents"] },
  },
  "python.types": {
    title: "Python’s objects by type", about: "Also larger blocks, which malloc has. Memory: items, keys and data that objects of the type refer to.", first: "bytes",
    more: ({ python }) => `${number(python.arenas)} arenas with ${bytes(python.arena_bytes)}; blocks in use: ${bytes(python.live_bytes)}, of which ${percent(python.typed_bytes, python.live_bytes)} are objects or memory of objects.`,
    left: ({ python }) => python.types_left_out,
    columns: { type: ["type", ""], role: ["what", ""], bytes: ["bytes", "Bytes of the blocks"], count: ["number", "Number of blocks"], arena_bytes: ["in arenas", "Bytes of those in Python’s own arenas"], example: ["example", "Address of one of them"] },
    values: { role: ROLES },
  },
  "python.classes": {
    title: "Python’s blocks by size", about: "Blocks of up to 512 bytes, in pools of one size.", first: "live",
    columns: { size: ["size", "Bytes of a block"], live: ["in use", "Number of blocks in use"], free: ["free", "Number of free blocks in the same pools"], pools: ["pools", "Number of pools"] },
  },
  seen: {
    title: "Other allocators and managed heaps", about: "Named by what is evidence of them, and not read: their memory is anonymous memory of no known use.",
    columns: { name: ["name", ""], version: ["version", ""], module: ["where", "The file that contains it, or the mapping whose name says so"], evidence: ["evidence", ""], tool: ["its own tool", "A command that shows more"] },
  },
});

/** The words for a table; one that this file does not name has the names of the API. @returns {Words} */
export function words(/** @type {string} */ table) {
  const known = WORDS[table];
  if (known) return known;
  const title = table.replaceAll("_", " ").replaceAll(".", ", ");
  return { title: title.charAt(0).toUpperCase() + title.slice(1), about: "" };
}

/** The place of a table. Tables that this file does not name are those that only some programs have: first. */
export function place(/** @type {string} */ table) {
  return Object.keys(WORDS).indexOf(table);
}
