// The words of the page: labels and explanations of terms, for tooltips and the help.

import { duration } from "./format.js";
import { asCounted, KINDS } from "./kinds.js";

/** A file, with the line if it is known: `FILE:LINE`. */
export function fileAndLine(/** @type {string} */ file, /** @type {number | null | undefined} */ line) {
  return line ? `${file}:${line}` : file;
}

/** Figures beside the kinds, as the kernel's tools show them: [name, label, definition]. */
export const KERNEL_FIGURES = /** @type {[string, string, string][]} */ ([
  ["rss", "RSS", "Resident set size, as ps shows it: anonymous, shared and mapped memory."],
  ["page_tables", "Page tables", "Kernel memory for the target's page tables: the kernel's VmPTE. Not part of the target's RSS, nor of any total here."],
]);

const DEFINITIONS = /** @type {[string, string, string][]} */ ([...KINDS.map(({ name, label, text }) => [name, label, text]), ...KERNEL_FIGURES]);

/** The label of a kind. */
export function label(/** @type {string} */ kind) {
  return DEFINITIONS.find(([name]) => name === kind)?.[1] ?? kind;
}

/** The definition of a kind. */
export function definition(/** @type {string} */ kind) {
  return asCounted(DEFINITIONS.find(([name]) => name === kind)?.[2] ?? "");
}

/** Kinds of mappings: [label, explanation] by the API's category. */
const PURPOSES = /** @type {Record<string, [string, string]>} */ ({
  heap: ["heap", "The heap that brk extends: malloc of the first thread."],
  arena: ["heaps of threads (glibc arenas)", "Arenas that glibc's malloc creates for threads. Each of their heaps is a mapping of 64 MiB of addresses."],
  main_stack: ["stack of the main thread", "[stack]"],
  thread_stack: ["stacks of other threads", "Memory that contains a thread's stack pointer and has guard pages. The stack pointer of a running thread is unknown: its stack counts as other anonymous memory."],
  stack_guard: ["guard pages of stacks", "Inaccessible pages below a thread's stack."],
  named_anon: ["anonymous, named by the program", "[anon:NAME], set with prctl(PR_SET_VMA)."],
  reserved: ["reserved addresses", "Inaccessible anonymous memory, which only reserves addresses."],
  anon: ["other anonymous memory", "mmap: large blocks of malloc, and heaps of other allocators and of language runtimes."],
  code: ["JIT code", "Executable anonymous memory, as just-in-time compilers create it."],
  executable: ["the program's own file", "Code and data of the executable."],
  library: ["shared libraries", "Files that are mapped as code, or have names of libraries."],
  file: ["other files", "Files that are mapped as data."],
  shared_anon: ["shared anonymous memory", "mmap with MAP_SHARED | MAP_ANONYMOUS."],
  named_shared: ["shared anonymous, named by the program", "[anon_shmem:NAME], set with prctl(PR_SET_VMA)."],
  memfd: ["memfd", "Memory of memfd_create."],
  sysv: ["System V shared memory", "shmget, shmat."],
  tmpfs: ["tmpfs and POSIX shared memory", "Files on tmpfs, and shm_open."],
  hugetlb: ["hugetlb", "Huge pages of hugetlbfs, which the kernel does not count in RSS."],
  device: ["devices", "Memory of devices."],
  kernel: ["vdso, vvar, vsyscall", "Mappings that the kernel created."],
});

/** The label and the explanation of a category of mappings. @returns {[string, string]} */
export function mappingPurpose(/** @type {string} */ category) {
  return PURPOSES[category] ?? [category, ""];
}

/** The reason why memory has no stack. */
export function noStackReason(/** @type {string} */ name) {
  const reasons = /** @type {Record<string, string>} */ ({ before_attach: "before attach", no_event: "not observed", stack_lost: "stack lost", not_walked: "not walked", gone: "gone before the scan" });
  return reasons[name] ?? name;
}

/** How a reply begins that says why there is no report. */
export const NO_REPORT = "no report at this time";

/** The status while there is no report, from the text of the reply: `Waiting for a process named NAME`. */
export function waitingText(/** @type {string} */ why) {
  const text = why.replace(`${NO_REPORT}: `, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The label of code without a symbol, in this file. */
export function noSymbol(/** @type {string} */ file) {
  return `[no symbol] (${file})`;
}

/** The label of a function in a file. */
export function functionName(/** @type {{ function?: string | null, file?: string }} */ row) {
  return row.function ?? noSymbol(row.file ?? "");
}

export const SELF = "Memory of the stacks whose innermost frame is this function: the function touched or allocated the memory itself.";
export const TOTAL = "Memory of all stacks that contain this function; a recursive function counts each byte once.";

/** The help panel: [term, explanation]. */
export const TERMS = /** @type {[string, string][]} */ ([
  ["Memory shown", "Memory that is in RAM now, by the call stack that first used it: the stack of the page fault, read or write that brought the page in. Memory that was allocated but never touched is not shown. Memory that was freed but not returned by the allocator is shown."],
  ["Equals the kernel", "The sum of all rows equals the figure that the kernel reports. The page says so only when both readings of the kernel, before and after the page scan, equal the sum. While the target changes its memory, the two readings differ, and the badge shows the maximum error of the sum."],
  ["Before attach", "Memory that was already resident when memprof attached. Its stacks are unknown, so it is shown by mapping. Start the program under memprof to get a stack for all memory."],
  ["Not observed", "Memory that became resident after memprof attached, but without an event that memprof observes."],
  ["Partial stack", "Unwinding did not reach the outermost frame. These stacks start at their last known frame."],
  ["Estimates", "memprof --heap estimates the heap by stack from sampled allocations; --heap=exact counts every call of the allocation functions instead. The ± beside a figure is its 95 % confidence interval. A figure that is not larger than its ± is shown as an upper limit, such as < 40 KiB."],
  ["Self and total", "Self is the memory that a function's own instructions touched. Total also includes the functions that it calls."],
  ["Callees, callers", "Callees: from main down to the functions that it calls. Callers: from the functions that touched the memory up to their callers."],
]);

/** Keys: [key, action]. */
export const KEYS = /** @type {[string, string][]} */ ([
  ["/", "focus the search"],
  ["?", "open or close this help"],
  ["n N", "select the next match of the search, or the previous one; in the search box, Enter and Shift+Enter"],
  ["o", "show the overview"],
  ["1 … 9, 0", "switch to a view: 1 flame graph, 2 treemap, 3 call tree, 4 functions, 5 sandwich, 6 page cache, 7 address space, 8 difference, 9 health, 0 heap"],
  ["f", "show or fold the native functions of an interpreted program"],
  ["p", "pause or resume"],
  ["m", "set a mark"],
  ["[ ]", "show the recorded moment before, or after"],
  ["← ↑ ↓ →", "move in the graph, the treemap and the tables"],
  ["Enter", "zoom into the selected node"],
  ["Backspace", "zoom out to the parent"],
  ["Escape", "close a menu or the help; return to the previous zoom level"],
]);

/** The newest profile of a process that the OOM killer killed. */
export function lastProfile(/** @type {import("./api.js").OomKill} */ { last }) {
  if (!last) return "no profile: it ended before its first one";
  return last.after_kill ? "a profile taken after the kill" : `its last profile, ${duration(last.age_ms)} before the kill`;
}
