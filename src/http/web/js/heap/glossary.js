// The words of the tables of a heap snapshot, by the names of tables, columns and values in the API.

import { bytes, number, percent } from "../format.js";

/** @typedef {Record<string, any>} Heap */
/**
 * @typedef {object} TableText
 * @property {string} title
 * @property {string} about
 * @property {(heap: Heap) => string} [more] further figures of the table, in a sentence
 * @property {(heap: Heap) => number} [leftOut] number of rows that are not listed
 * @property {string} [sortedBy] the column of the initial order
 * @property {Record<string, [string, string]>} [columns] label and explanation of each column, in display order
 * @property {Record<string, Record<string, string>>} [values] labels of values, by column
 */

/** The kinds of a heap's bytes. */
export const BYTE_KINDS = /** @type {Record<string, string>} */ ({
  live: "in use",
  live_mapped: "in use, with separate mappings",
  thread_cache: "free, in thread caches",
  fast: "free, in fast bins",
  unsorted: "free, in the unsorted bin",
  small: "free, in small bins",
  large: "free, in large bins",
  top: "free, at the ends of arenas",
  overhead: "the allocator’s own",
  jemalloc_live: "in use, jemalloc’s slabs",
  jemalloc_large: "in use, jemalloc’s large regions",
  jemalloc_cache: "free, in jemalloc’s thread caches",
  jemalloc_free: "free, in jemalloc’s slabs",
  jemalloc_dirty: "free, jemalloc’s dirty pages",
  jemalloc_muzzy: "free, jemalloc’s muzzy pages",
  jemalloc_retained: "free, jemalloc’s retained pages",
  jemalloc_overhead: "jemalloc’s own",
  span_live: "in use, in pages of blocks of one size",
  span_large: "in use, with pages of their own",
  span_cache: "free, in threads’ caches or freed by other threads",
  span_free: "free blocks",
  span_pages: "free pages",
  span_overhead: "the allocator’s own",
  managed_live: "managed heap, in use or not freed yet",
  managed_free: "managed heap, free objects",
  managed_pages: "managed heap, free pages",
  managed_overhead: "managed heap, stacks and the runtime’s own",
  python_live: "in use, Python’s blocks",
  python_free: "free, Python’s blocks",
  python_pools: "free, Python’s pools",
  python_overhead: "Python’s allocator’s own",
});

/** The kinds of types. */
export const TYPE_KINDS = /** @type {Record<string, string>} */ ({ class: "C++", trait_object: "Rust", python: "Python", declared: "declared", text: "text", pointers: "addresses", zeroes: "zeroes", unknown: "unknown" });

/** The roles of blocks of Python’s memory. */
export const ROLES = /** @type {Record<string, string>} */ ({ object: "objects", memory: "memory of objects", kept: "freed objects, for reuse", unknown: "unknown" });

/** Private memory that a snapshot does not contain. */
export const MISSING = /** @type {Record<string, string>} */ ({
  not_forked: "memory that a forked child does not have (MADV_DONTFORK)",
  wiped: "memory that is empty in a forked child (MADV_WIPEONFORK)",
  unread: "memory that the kernel did not let memprof read",
  not_in_core: "memory that the core does not contain",
  cut_off: "memory behind the end of the core, which is cut off",
  registers: "the registers of threads",
});

/** The kinds of roots. */
const ROOTS = { variable: "variable", thread: "thread", mapping: "mapping", missing: "memory outside the snapshot", other: "roots beyond the limit, counted together" };

/** The label of a root. */
export function rootName(/** @type {string} */ kind, /** @type {string} */ name) {
  return kind === "variable" ? `variable ${name}` : kind === "other" ? ROOTS.other : name;
}

/** The tables, in display order. */
const TABLES = /** @type {Record<string, TableText>} */ ({
  rows: {
    title: "The heap by kind", about: "Chunks in use, free chunks by the allocator’s list, and the allocator’s own bytes.", sortedBy: "resident",
    columns: { what: ["kind", ""], chunks: ["chunks", "Number of chunks"], bytes: ["bytes", "Bytes, resident or not"], resident: ["resident", "Bytes in RAM"] },
    values: { what: BYTE_KINDS },
  },
  others: {
    title: "Other anonymous memory", about: "Anonymous memory outside the heap. Together with the heap’s resident bytes it adds up to the process’s anonymous memory.", sortedBy: "resident",
    columns: { category: ["kind", ""], resident: ["resident", "Bytes in RAM"] },
  },
  "types.rows": {
    title: "Objects by type", about: "Each chunk in use has one type. Roots: the roots that lead to the most bytes of a type, each object counted under its nearest root.", sortedBy: "bytes",
    more: ({ types }) => `${percent(types.named, types.bytes)} of the bytes have a named type; ${percent(types.recognized, types.bytes)} look like text, addresses or zeroes.${types.debug_info?.incomplete ? ` Not all debug information was used: ${types.debug_info.incomplete}.` : ""}`,
    leftOut: ({ types }) => types.left_out,
    columns: { kind: ["kind", ""], name: ["type", ""], bytes: ["bytes", "Bytes of the objects’ contents"], count: ["objects", "Number of objects"], unreachable: ["unreachable", "Number of objects that nothing refers to"], unreachable_bytes: ["unreachable bytes", "Bytes of the unreachable objects"], example: ["example", "Address of one object: of an unreachable one, if there is any"], retained_by: ["roots", "The roots that lead to the most bytes of these objects"] },
    values: { kind: TYPE_KINDS },
  },
  "by_stack.rows": {
    title: "By stack", about: "The chunks in use by the stacks that allocated them: estimates from samples with standard errors, corrected by the snapshot. The resident, pinned and unreachable bytes of all stacks and the tables “Free pages” and “Without a stack” add up to the process’s anonymous memory.", sortedBy: "resident",
    more: ({ by_stack: { samples } }) => `${number(samples.joined)} samples; ${number(samples.gone)} more are excluded because their chunks are not in use any more.${samples.lost + samples.unsent > 0 ? ` ${number(samples.lost)} were dropped because no space was left for them, and ${number(samples.unsent)} did not reach memprof: their chunks have no stack.` : ""}`,
    leftOut: ({ by_stack }) => by_stack.left_out,
    columns: { stack: ["stack", "The innermost function first"], live: ["live (estimated)", "Requested bytes in use, resident or not"], resident: ["resident", "Resident bytes of reachable chunks, with headers"], overhead: ["overhead", "The part of the resident bytes that is headers, or was added to the requested size"], pinned: ["waste: pinned", "Resident free bytes on pages that these chunks keep in memory. The true figure is within 1.96 standard errors in 83 to 90 % of cases, not in 95 %: a few chunks may pin most of the bytes"], pinned_beside_samples: ["beside samples", "The part of the pinned bytes on pages of the sampled chunks themselves"], unreachable: ["unreachable", "Resident bytes of chunks that nothing refers to"], samples: ["samples", "Number of live samples"], unreachable_samples: ["unreachable samples", "Number of live samples of unreachable chunks"] },
  },
  "by_stack.leaks": {
    title: "Unreachable by stack", about: "Chunks that nothing refers to, by the stack that allocated them and by the unreachable chunk that leads to them.", sortedBy: "requested",
    leftOut: ({ by_stack }) => by_stack.leaks_left_out,
    columns: { stack: ["stack", "The innermost function first"], head: ["led to by", "The stack of an unreachable chunk that leads to them"], requested: ["requested", "Requested bytes, resident or not"], allocations: ["allocations", "Number of chunks"], unreachable: ["resident", "Resident bytes, with headers"], samples: ["samples", "Number of live samples"], example: ["example", "Address of a chunk that leads to them"] },
  },
  "by_stack.free_pages": {
    title: "Free pages", about: "Resident pages of the heap without a chunk in use, by the stacks that brought them in. Other stacks may have freed the chunks.", sortedBy: "resident",
    columns: { grown_by: ["brought in by", "The innermost function first"], resident: ["resident", "Free bytes"] },
    values: { grown_by: { null: "unknown" } },
  },
  "by_stack.rest": {
    title: "Without a stack", about: "Memory without a stack, so that the sum is complete.", sortedBy: "resident",
    columns: { what: ["kind", ""], resident: ["resident", "Resident bytes"], pinned: ["pinned", "Resident free bytes on pages that these chunks keep in memory"] },
  },
  "grown_by.rows": {
    title: "Grown by", about: "The stacks whose first touches brought in the heap’s resident pages: who made the heap grow, not who owns the objects on these pages now.", sortedBy: "bytes",
    leftOut: ({ grown_by }) => grown_by.left_out,
    columns: { stack: ["stack", "The innermost function first"], bytes: ["bytes", "Resident bytes"] },
  },
  read: {
    title: "How memory was read", about: "By kind of mapping. What could not be read is named above.", sortedBy: "bytes",
    columns: { kind: ["kind of mapping", ""], from: ["read from", ""], bytes: ["bytes", "Resident and swapped-out bytes"] },
    values: {
      kind: { ...MISSING, ordinary: "private memory", hugetlb: "huge pages of hugetlbfs", no_access: "memory without access (PROT_NONE)" },
      from: { child: "the copy-on-write child", stopped_process: "the stopped process", core: "the core", nothing: "not read, only counted" },
    },
  },
  "zero_pages.regions": {
    title: "Pages of zeroes by use", about: "Resident pages that contain only zeroes, by what the heap uses them for.", sortedBy: "zero",
    more: ({ zero_pages: { examined, not_examined, zero, outside, huge, huge_zero } }) => `${bytes(zero)} of ${bytes(examined)}, of which ${bytes(outside)} are outside the heap. ${huge === null ? "Which pages are huge is not known: that takes Linux 6.7." : `In huge pages: ${bytes(huge_zero)} of ${bytes(huge)}.`}${not_examined ? ` Not examined: ${bytes(not_examined)}.` : ""}`,
    columns: { what: ["kind", ""], zero: ["zeroes", "Bytes on resident pages that contain only zeroes"] },
    values: { what: BYTE_KINDS },
  },
  "zero_pages.mappings": {
    title: "Pages of zeroes by mapping", about: "Resident pages that contain only zeroes. Clearing or touching less would save them; in huge pages, also MADV_NOHUGEPAGE.", sortedBy: "zero",
    leftOut: ({ zero_pages }) => zero_pages.left_out,
    columns: { category: ["kind", ""], name: ["name", "Name in /proc/PID/maps"], zero: ["zeroes", "Resident pages that contain only zeroes"], resident: ["resident", "Resident anonymous memory that was examined"], huge: ["huge pages", "Memory in transparent huge pages"], huge_zero: ["zeroes in huge pages", "The part of the huge pages that contains only zeroes"], size: ["size", "Size of the mapping"], address: ["address", "First address"] },
  },
  "zero_by.rows": {
    title: "Pages of zeroes brought in by", about: "The stacks whose first touches brought in the resident pages that contain only zeroes, in the heap or not.", sortedBy: "bytes",
    leftOut: ({ zero_by }) => zero_by.left_out,
    columns: { stack: ["stack", "The innermost function first"], bytes: ["bytes", "Resident bytes"] },
  },
  "retained.roots": {
    title: "Roots", about: "Roots by the objects that they lead to. Each object is counted under its nearest root. Conservative: any word counts as an address.", sortedBy: "bytes",
    leftOut: ({ retained }) => retained.left_out,
    columns: { kind: ["kind", ""], name: ["root", ""], bytes: ["bytes", "Bytes of the objects whose nearest root it is"], count: ["objects", "Number of these objects"], address: ["address", "Address of the root; none for a thread"] },
    values: { kind: ROOTS },
  },
  arenas: {
    title: "Arenas", about: "The bytes of the heap by arena: glibc creates further arenas for threads. All columns except “resident” include memory that is not resident.", sortedBy: "resident",
    columns: { name: ["arena", ""], resident: ["resident", "Bytes in RAM"], live: ["in use", "Contents of chunks in use"], free: ["free", "Free bytes"], overhead: ["own", "The allocator’s own bytes"], chunks: ["chunks", "Number of chunks in use"] },
  },
  sizes: {
    title: "Chunks by size", about: "Sizes include headers. Pinned: free bytes on the pages that chunks of this size keep in memory.", sortedBy: "live_bytes",
    columns: { live: ["in use", "Number of chunks in use"], live_bytes: ["bytes in use", "Bytes of chunks in use, with headers"], free: ["free", "Number of free chunks, without the ends of arenas"], free_bytes: ["free bytes", "Bytes of these free chunks"], pinned: ["pinned", "Free bytes on pages that chunks of this size keep in memory: a page’s free bytes, divided among its chunks in use"] },
  },
  largest: {
    title: "Largest chunks in use", about: "By the size of their contents.", sortedBy: "bytes",
    columns: { address: ["address", "Address of the contents"], bytes: ["bytes", "Size of the contents"], resident: ["resident", "Bytes in RAM"], root: ["root", "The nearest root that leads to the chunk"] },
  },
  "unreachable.shapes": {
    title: "Lost blocks by shape", about: "Blocks that nothing refers to, with those that only they lead to. Groups that look alike are one row: a leak that happened a thousand times is one shape.", sortedBy: "bytes",
    more: ({ unreachable }) => `${number(unreachable.chunks)} blocks, ${bytes(unreachable.bytes)}.`,
    leftOut: ({ unreachable }) => unreachable.shapes_left_out,
    columns: { parts: ["shape", "The first blocks of a group"], groups: ["times", "Number of groups of this shape"], bytes: ["bytes", "Bytes of all their blocks"], chunks: ["blocks", "Number of all their blocks"], example: ["example", "Address of the first block of one group"] },
  },
  "unreachable.heads": {
    title: "Unreachable chunks", about: "No register, stack, variable or other private memory contains an address in these chunks. Conservative: any word counts as an address; pointers in shared memory and disguised pointers are not found. The figures of a chunk include the chunks that only it leads to.", sortedBy: "bytes",
    more: ({ unreachable }) => `${number(unreachable.chunks)} chunks, ${bytes(unreachable.bytes)}.`,
    leftOut: ({ unreachable }) => unreachable.heads_left_out,
    columns: { bytes: ["bytes", "Bytes of this chunk and of the chunks that only it leads to"], chunks: ["chunks", "Number of these chunks"], own: ["own bytes", "Size of this chunk’s contents"], address: ["address", "Address of this chunk’s contents"] },
  },
  "python.types": {
    title: "Python’s objects by type", about: "Includes larger blocks, which are on malloc’s heap. Memory: items, keys and data that objects of the type refer to.", sortedBy: "bytes",
    more: ({ python }) => `${python.arenas ? `${number(python.arenas)} arenas with ${bytes(python.arena_bytes)}; blocks` : `Blocks of ${python.allocator}`} in use: ${bytes(python.live_bytes)}; ${percent(python.typed_bytes, python.live_bytes)} of them are objects or memory of objects.`,
    leftOut: ({ python }) => python.types_left_out,
    columns: { type: ["type", ""], role: ["role", ""], bytes: ["bytes", "Bytes of the blocks"], count: ["number", "Number of blocks"], arena_bytes: ["in arenas", "Bytes of the blocks in Python’s own arenas"], example: ["example", "Address of one block"], held_by: ["held by", "Types of the nearest objects that lead to the blocks, apart from lists, dicts and other collections, with their shares of the bytes"] },
    values: { role: ROLES },
  },
  "python.classes": {
    title: "Python’s blocks by size", about: "Blocks of up to 512 bytes, in pools of one size.", sortedBy: "live",
    columns: { size: ["size", "Bytes of a block"], live: ["in use", "Number of blocks in use"], free: ["free", "Number of free blocks in the same pools"], pools: ["pools", "Number of pools"] },
  },
  seen: {
    title: "Other allocators and managed heaps", about: "Detected by the evidence given here, but not read: their memory counts as anonymous memory of unknown use.",
    columns: { name: ["name", ""], version: ["version", ""], module: ["where", "The file that contains the allocator, or the mapping with its name"], evidence: ["evidence", ""], tool: ["tool", "A command that shows more"] },
  },
});

/** The texts of a table. An unknown table has the names of the API. @returns {TableText} */
export function tableText(/** @type {string} */ table) {
  const known = TABLES[table];
  if (known) return known;
  const title = table.replaceAll("_", " ").replaceAll(".", ", ");
  return { title: title.charAt(0).toUpperCase() + title.slice(1), about: "" };
}

/** The label and the explanation of a column. An unknown column has its name in the API. @returns {[string, string]} */
export function columnText(/** @type {string} */ table, /** @type {string} */ column) {
  return tableText(table).columns?.[column] ?? [column.replaceAll("_", " "), ""];
}

/** The rank of a table in display order. Unknown tables, which only some programs have, are first. */
export function tableRank(/** @type {string} */ table) {
  return Object.keys(TABLES).indexOf(table);
}
