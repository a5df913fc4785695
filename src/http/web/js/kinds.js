// The kinds of memory: their names, groups and units, and the question that each answers.

/** @typedef {"bytes" | "objects"} Unit the unit of a kind's figures */
/**
 * @typedef {object} Kind
 * @property {string} name in the API
 * @property {string} label
 * @property {string} text the definition
 * @property {Group} group
 * @property {Unit} unit
 */
/**
 * @typedef {object} Group
 * @property {string} label
 * @property {string} answers the question that its kinds answer, in one line
 * @property {string} more how memory is attributed to stacks
 * @property {string} [counted] the field of a report that is true if the group is counted; without a field, it always is
 */

const RESIDENT = { label: "Resident (first touch)", answers: "Resident (first touch): who made the process grow.", more: "Each page is attributed to the stack that touched it first." };
const LIVE = { label: "Live heap (estimated)", answers: "Live (estimated): who uses the heap now.", more: "Memory that is allocated and not freed, by the stack that allocated it.", counted: "heap_counted" };
const AT_PEAK = { label: "Live heap at its peak (estimated)", answers: "Heap at its peak (estimated): who held it when most was live.", more: "Memory that was live at the moment at which the whole live heap, of all processes together, was largest.", counted: "heap_peak_counted" };
const ALLOCATED = { label: "Allocated (estimated)", answers: "Allocated (estimated): who causes the traffic.", more: "All allocations since sampling began, including freed ones.", counted: "heap_counted" };
const TEMPORARY = { label: "Temporary (estimated)", answers: "Temporary (estimated): who allocates only to free at once.", more: "Memory freed within --heap-temporary (10 ms by default) of its allocation.", counted: "heap_counted" };
const PROPORTIONAL = { label: "Proportional (PSS)", answers: "Proportional (PSS): how much memory processes use together.", more: "A page with N mappings counts 1/N for each, under the stack that touched it first in that process.", counted: "pss_counted" };
const KERNEL = { label: "Kernel (approximate)", answers: "Kernel (approximate): who makes the kernel allocate page tables, pipes and buffers.", more: "Not part of any total.", counted: "kernel_counted" };

/** All kinds, in the order of the selector. */
export const KINDS = /** @type {Kind[]} */ ([
  ["all", "All: resident + page cache", "Resident anonymous and shared memory, and the page cache that the target's own reads, writes and file mappings brought in.", RESIDENT],
  ["resident", "Resident", "Anonymous and shared memory that is in RAM now: RssAnon + RssShmem of /proc/PID/status.", RESIDENT],
  ["anon", "Anonymous", "Resident anonymous memory: heap, stacks, private mappings. The kernel's RssAnon.", RESIDENT],
  ["shmem", "Shared", "Resident shared memory that the target maps: shmem, tmpfs, memfd. The kernel's RssShmem.", RESIDENT],
  ["cache", "Page cache", "File pages that the target's own I/O brought in and that remain cached. Not part of the target's RSS, unless also mapped.", RESIDENT],
  ["file", "Mapped files", "Resident pages of file mappings: code, libraries, mapped data. The same physical pages may also count as page cache.", RESIDENT],
  ["swap", "Swapped", "Memory written out to swap: not in RAM.", RESIDENT],
  ["hugetlb", "Huge pages", "Pages of hugetlbfs, which the kernel does not count in RSS.", RESIDENT],
  ["pss", "PSS", "Resident memory and mapped files with shared pages divided: each of N mappings of a page counts 1/N of it, as in the kernel's PSS. The sum over all processes contains each page once. Counted only with --pss, --all or --cgroup; not part of any total.", PROPORTIONAL],
  ["inuse_space", "Live heap", "Bytes allocated and not freed, by the stack that allocated them. Estimated from samples (--heap); not necessarily resident.", LIVE],
  ["inuse_objects", "Live allocations", "Number of allocations not freed, by the stack that made them. Estimated from samples (--heap).", LIVE, "objects"],
  ["at_peak_space", "Heap at its peak", "Bytes that were live when the live heap was largest, by the stack that allocated them. Estimated from samples (--heap).", AT_PEAK],
  ["at_peak_objects", "Allocations at the heap's peak", "Number of allocations that were live when the live heap was largest. Estimated from samples (--heap).", AT_PEAK, "objects"],
  ["alloc_space", "Allocated", "All bytes allocated since sampling began, including freed ones. Estimated from samples (--heap).", ALLOCATED],
  ["alloc_objects", "Allocations", "Number of all allocations since sampling began. Estimated from samples (--heap).", ALLOCATED, "objects"],
  ["temporary_space", "Temporary", "Bytes freed within --heap-temporary (10 ms by default) of their allocation. Estimated from samples (--heap).", TEMPORARY],
  ["temporary_objects", "Temporary allocations", "Number of allocations freed within --heap-temporary (10 ms by default). Estimated from samples (--heap).", TEMPORARY, "objects"],
  ["kernel", "Kernel (approximate)", "Kernel memory allocated for the target, in pages: page tables, pipes, socket buffers, slabs. Counted only with --kernel; approximate, and not part of any total.", KERNEL],
].map(([name, label, text, group, unit = "bytes"]) => ({ name, label, text, group, unit })));

/** How the heap is counted, from the newest reply. */
let heap = { exact: false, single: true };

/** Updates how the heap is counted; a report without the heap changes nothing. */
export function updateHeapMode(/** @type {{ heap_counted?: boolean, heap_exact?: boolean, heap_single?: boolean } | undefined} */ report) {
  if (report?.heap_counted) heap = { exact: report.heap_exact ?? false, single: report.heap_single ?? true };
}

/** Whether allocations are sampled, so that a filter can select single ones. False if calls are counted (--heap=exact). */
export const isSampled = () => heap.single;

/** Replacements in texts about sampled allocations if calls are counted: every call, one in N, and in both cases. */
const ALL_CALLS = [["Estimated from samples (--heap)", "Every call counted (--heap=exact)"], ["(estimated)", "(exact)"]];
const SOME_CALLS = [["from samples (--heap)", "from one call in N (--heap=exact --every N)"]];
const CALLS = [["since sampling began", "in the window"], ["llocated and not freed", "llocated in the window and not freed"], ["llocations not freed", "llocations in the window that are not freed"]];

/** A text about sampled allocations, reworded for how the heap is counted. */
export function asCounted(/** @type {string} */ text) {
  const changes = heap.single ? [] : [...(heap.exact ? ALL_CALLS : SOME_CALLS), ...CALLS];
  return changes.reduce((text, [from, to]) => text.replaceAll(from, to), text);
}

const kind = (/** @type {string} */ name) => KINDS.find((kind) => kind.name === name);

/** The unit of a kind's figures. @returns {Unit} */
export const unitOf = (/** @type {string} */ name) => kind(name)?.unit ?? "bytes";

/** The group of a kind, worded for how the heap is counted. @returns {Group} */
export function groupOf(/** @type {string} */ name) {
  const { label, answers, more, counted } = kind(name)?.group ?? RESIDENT;
  return { label: asCounted(label), answers: asCounted(answers), more: asCounted(more), counted };
}

/** The title of an empty view. */
export const EMPTY_TITLE = "Nothing to show";

/** Whether a kind belongs to the heap by stack. */
export const isHeapKind = (/** @type {string} */ name) => kind(name)?.group.counted?.startsWith("heap_") ?? false;

/** Whether a filter can select single allocations of a kind. What was live at the peak is known by stack alone. */
export const canBeFiltered = (/** @type {string} */ name) => kind(name)?.group.counted === "heap_counted";

/**
 * The title and the text of a view without memory of a kind. `total` are the report's totals, without zeroes; with a filter,
 * of the allocations that it matches. `otherwise` is the text for kinds that do not belong to the heap.
 */
export function emptyText(/** @type {string} */ name, /** @type {Record<string, number> | undefined} */ total, /** @type {string} */ otherwise, filtered = false) {
  if (filtered && isHeapKind(name)) return [EMPTY_TITLE, "The filter matches no allocation of this kind. Change the filter, or select another kind."];
  if (!isHeapKind(name) || !total) return [EMPTY_TITLE, otherwise];
  if (!heap.single) return [EMPTY_TITLE, total.alloc_space ? "No counted call is of this kind. Select another kind, or wait." : "No call of an allocation function has been counted yet."];
  if (total.alloc_space) return [EMPTY_TITLE, "No sampled allocation is of this kind. Select another kind, or wait."];
  return ["No allocation was sampled", "The process may not have allocated enough yet: memprof samples one allocation in about 512 KiB (--heap-interval). Or the process has no sampler: start it with memprof --heap -- CMD. The sampler does not run in static and setuid programs."];
}
