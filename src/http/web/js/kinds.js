// The kinds of memory: their names, groups and units, and which question each answers.

/** @typedef {"bytes" | "objects"} Unit what the figures of a kind count */
/**
 * @typedef {object} Kind
 * @property {string} name in the API
 * @property {string} label
 * @property {string} text what it counts
 * @property {Group} group
 * @property {Unit} unit
 */
/**
 * @typedef {object} Group
 * @property {string} label
 * @property {string} answers the question that its kinds answer, in one line
 * @property {string} more what is under which stack
 * @property {string} [counted] the field of a report that says whether it is counted; without, it always is
 */

const RESIDENT = { label: "Resident (first touch)", answers: "Resident (first touch): who made the process grow.", more: "Each page is under the stack that touched it first." };
const LIVE = { label: "Live heap (estimated)", answers: "Live (estimated): who holds the heap now.", more: "What is allocated and not freed, under the stack that allocated it.", counted: "heap_counted" };
const ALLOCATED = { label: "Allocated (estimated)", answers: "Allocated (estimated): who causes the traffic.", more: "All allocations since sampling began, also those freed since.", counted: "heap_counted" };
const TEMPORARY = { label: "Temporary (estimated)", answers: "Temporary (estimated): who allocates only to free at once.", more: "Freed within --heap-temporary, by default 10 ms.", counted: "heap_counted" };
const SHARED = { label: "Shared pages once", answers: "Shared pages once (PSS): what processes hold together.", more: "Of a page that N mappings have, each has 1/N, under the stack that touched it first there.", counted: "pss_counted" };
const KERNEL = { label: "Kernel (approximate)", answers: "Kernel (approximate): for whom the kernel allocates page tables, pipes and buffers.", more: "In no total.", counted: "kernel_counted" };

/** All kinds, in the order in which they are offered. */
export const KINDS = /** @type {Kind[]} */ ([
  ["all", "All: resident + page cache", "Resident anonymous and shared memory, and the page cache that the target's own reads, writes and file mappings brought in.", RESIDENT],
  ["resident", "Resident", "Anonymous and shared memory that is in RAM now: RssAnon + RssShmem of /proc/PID/status.", RESIDENT],
  ["anon", "Anonymous", "Resident anonymous memory: heap, stacks, private mappings. The kernel's RssAnon.", RESIDENT],
  ["shmem", "Shared", "Resident shared memory that the target maps: shmem, tmpfs, memfd. The kernel's RssShmem.", RESIDENT],
  ["cache", "Page cache", "File pages that the target's own I/O brought in and that are still cached. Not part of its RSS, unless also mapped.", RESIDENT],
  ["file", "Mapped files", "Resident pages of file mappings: code, libraries, mapped data. The same physical pages may also count as page cache.", RESIDENT],
  ["swap", "Swapped", "Written out to swap: not in RAM.", RESIDENT],
  ["hugetlb", "Huge pages", "Pages of hugetlbfs, which the kernel does not count in RSS.", RESIDENT],
  ["pss", "PSS", "Resident memory and mapped files with shared pages once; of a page that several mappings have, each has its part, as in the kernel's PSS. So the sum over processes has each page once. Counted only with --pss, --all or --cgroup; in no total.", SHARED],
  ["inuse_space", "Live heap", "Bytes allocated and not freed, by the stack that allocated them. Estimated from samples (--heap); not all of it need be resident.", LIVE],
  ["inuse_objects", "Live allocations", "Number of allocations not freed, by the stack that made them. Estimated from samples (--heap).", LIVE, "objects"],
  ["alloc_space", "Allocated", "All bytes allocated since sampling began, also those freed. Estimated from samples (--heap).", ALLOCATED],
  ["alloc_objects", "Allocations", "Number of all allocations since sampling began. Estimated from samples (--heap).", ALLOCATED, "objects"],
  ["temporary_space", "Temporary", "Bytes freed within --heap-temporary (by default 10 ms) of their allocation. Estimated from samples (--heap).", TEMPORARY],
  ["temporary_objects", "Temporary allocations", "Number of allocations freed within --heap-temporary (by default 10 ms). Estimated from samples (--heap).", TEMPORARY, "objects"],
  ["kernel", "Kernel (approximate)", "Kernel memory allocated for the target, in pages: page tables, pipes, socket buffers, slabs. Counted only with --kernel; approximate, and not part of any total.", KERNEL],
].map(([name, label, text, group, unit = "bytes"]) => ({ name, label, text, group, unit })));

/** How the heap was counted, as the newest reply says. */
let heap = { exact: false, single: true };

/** Takes over how the heap was counted. Replies without the heap say nothing about it. */
export function heapIs(/** @type {{ heap_counted?: boolean, heap_exact?: boolean, heap_single?: boolean } | undefined} */ report) {
  if (report?.heap_counted) heap = { exact: report.heap_exact ?? false, single: report.heap_single ?? true };
}

/** Whether allocations were sampled, so that a filter can choose single ones: not where calls were counted (--heap=exact). */
export const isSampled = () => heap.single;

/** What texts about sampled allocations become where calls were counted: all, or one in N; and in both cases. */
const ALL_CALLS = [["Estimated from samples (--heap)", "Every call counted (--heap=exact)"], ["(estimated)", "(exact)"]];
const SOME_CALLS = [["from samples (--heap)", "from one call in N (--heap=exact --every N)"]];
const CALLS = [["since sampling began", "in the window"], ["llocated and not freed", "llocated in the window and not freed"], ["llocations not freed", "llocations in the window that are not freed"]];

/** A text that calls figures of the heap estimates from sampled allocations, as they were counted. */
export function asCounted(/** @type {string} */ text) {
  const changes = heap.single ? [] : [...(heap.exact ? ALL_CALLS : SOME_CALLS), ...CALLS];
  return changes.reduce((text, [from, to]) => text.replaceAll(from, to), text);
}

const kind = (/** @type {string} */ name) => KINDS.find((kind) => kind.name === name);

/** What a kind's figures count. @returns {Unit} */
export const unitOf = (/** @type {string} */ name) => kind(name)?.unit ?? "bytes";

/** The group of a kind, in words for how it was counted. @returns {Group} */
export function groupOf(/** @type {string} */ name) {
  const { label, answers, more, counted } = kind(name)?.group ?? RESIDENT;
  return { label: asCounted(label), answers: asCounted(answers), more: asCounted(more), counted };
}

/** Whether a kind is of the heap by stack. */
export const isOfHeap = (/** @type {string} */ name) => kind(name)?.group.counted === "heap_counted";

/**
 * What a view says that has nothing of a kind: the title and why. `total` are the report's totals, without those that are 0,
 * of the allocations that a filter chooses if there is one.
 */
export function nothingOf(/** @type {string} */ name, /** @type {Record<string, number> | undefined} */ total, /** @type {string} */ otherwise, filtered = false) {
  if (filtered && isOfHeap(name)) return ["Nothing here", "The filter chooses no allocation that counts as this. Change it, or select another kind."];
  if (!isOfHeap(name) || !total) return ["Nothing here", otherwise];
  if (!heap.single) return ["Nothing here", total.alloc_space ? "Calls were counted, but none that counts as this. Select another kind, or wait." : "No call of an allocation function was counted yet."];
  if (total.alloc_space) return ["Nothing here", "Allocations were sampled, but none that counts as this. Select another kind, or wait."];
  return ["No allocation was sampled", "The process may not have allocated enough yet: one allocation in about 512 KiB (--heap-interval) is sampled. Or it has no sampler: start it with memprof --heap -- CMD. Static and setuid programs cannot be given one."];
}
