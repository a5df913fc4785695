// Explanations of terms, shown as tooltips and in the help.

/** Kinds of memory: [name, label, explanation]. */
export const KINDS = /** @type {[string, string, string][]} */ ([
  ["all", "All: resident + page cache", "Resident anonymous and shared memory, and the page cache that the target's own reads, writes and file mappings brought in."],
  ["resident", "Resident", "Anonymous and shared memory that is in RAM now: RssAnon + RssShmem of /proc/PID/status."],
  ["anon", "Anonymous", "Resident anonymous memory: heap, stacks, private mappings. The kernel's RssAnon."],
  ["shmem", "Shared", "Resident shared memory that the target maps: shmem, tmpfs, memfd. The kernel's RssShmem."],
  ["cache", "Page cache", "File pages that the target's own IO brought in and that are still cached. Not part of its RSS, unless mapped too."],
  ["file", "Mapped files", "Resident pages of file mappings: code, libraries, mapped data. The same physical pages may count as page cache too."],
  ["swap", "Swapped", "Written out to swap: not in RAM."],
  ["hugetlb", "Huge pages", "Pages of hugetlbfs; the kernel keeps them apart from RSS."],
  ["kernel", "Kernel (approximate)", "Kernel memory that the target had allocated, by page: page tables, pipes, socket buffers, slabs. Counted with --kernel only, approximate, and in no total."],
]);

/** Kernel figures in addition to these kinds; they have no stacks. */
export const OUTSIDE = /** @type {[string, string, string][]} */ ([
  ["page_tables", "Page tables", "Kernel memory that holds the target's page tables: the kernel's VmPTE. No part of its RSS, nor of any total here."],
]);

const NAMED = [...KINDS, ...OUTSIDE];

export function label(/** @type {string} */ kind) {
  return NAMED.find(([name]) => name === kind)?.[1] ?? kind;
}

export function meaning(/** @type {string} */ kind) {
  return NAMED.find(([name]) => name === kind)?.[2] ?? "";
}

/** Why memory has no stack. */
export function reason(/** @type {string} */ name) {
  const reasons = /** @type {Record<string, string>} */ ({ before_attach: "before attach", no_event: "not observed", stack_lost: "stack lost" });
  return reasons[name] ?? name;
}

/** The label of code without a symbol in its file. */
export function noSymbol(/** @type {string} */ file) {
  return `[no symbol] (${file})`;
}

export const SELF = "Bytes of stacks whose innermost frame is in this function: it touched the memory itself.";
export const TOTAL = "Bytes of all stacks that pass through this function; a recursive one counts each byte once.";

/** The help panel: [term, explanation]. */
export const TERMS = /** @type {[string, string][]} */ ([
  ["What is shown", "Memory that is in RAM now, under the call stack that first used it: the page fault, read or write that brought the page in. Memory that was allocated and never written is not there; memory that was freed and kept by the allocator is."],
  ["Sum equals kernel", "All rows added up give the figure that the kernel itself reports. The badge is green only when both readings of the kernel, before and after the page scan, equal the sum; while the target changes its memory, they cannot, and the badge shows the range instead."],
  ["Before attach", "Resident already when memprof attached, so nobody saw which code brought it in. It is shown by mapping. Start the program under memprof to have a stack for everything."],
  ["Not observed", "Came in while attached, but by no event that memprof sees."],
  ["Partial stack", "The walk did not reach the outermost frame. Such stacks start at their last known frame."],
  ["Self and total", "Self is what a function's own instructions touched; total adds what the functions it calls touched."],
  ["Callees, callers", "Callees: from main downward, what calls what. Callers: from the functions that touched the memory, upward to who called them."],
]);

/** Keys: [key, action]. */
export const KEYS = /** @type {[string, string][]} */ ([
  ["/", "search"],
  ["?", "this help"],
  ["1 … 8", "the views, in their order"],
  ["p", "pause or go on"],
  ["m", "set a mark"],
  ["← ↑ ↓ →", "move in the graph, the treemap and the tables"],
  ["Enter", "zoom into the selected node"],
  ["Backspace", "zoom out one level"],
  ["Escape", "zoom out; close the help"],
]);
