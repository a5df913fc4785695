// Explanations of terms, shown as tooltips and in the help.

import { span } from "./format.js";
import { asCounted, KINDS } from "./kinds.js";

/** A file, and a line in it where there is one. */
export function atLine(/** @type {string} */ file, /** @type {number | null | undefined} */ line) {
  return line ? `${file}:${line}` : file;
}

/** Kernel figures in addition to these kinds; they have no stacks. */
export const OUTSIDE = /** @type {[string, string, string][]} */ ([
  ["page_tables", "Page tables", "Kernel memory for the target's page tables: the kernel's VmPTE. Not part of its RSS, nor of any total here."],
]);

const NAMED = /** @type {[string, string, string][]} */ ([...KINDS.map(({ name, label, text }) => [name, label, text]), ...OUTSIDE]);

export function label(/** @type {string} */ kind) {
  return NAMED.find(([name]) => name === kind)?.[1] ?? kind;
}

export function meaning(/** @type {string} */ kind) {
  return asCounted(NAMED.find(([name]) => name === kind)?.[2] ?? "");
}

/** Kinds of mappings: [label, explanation] by the API's category. */
const PURPOSES = /** @type {Record<string, [string, string]>} */ ({
  heap: ["heap", "The heap that grows by brk: malloc of the first thread."],
  arena: ["heaps of threads (glibc arenas)", "glibc's malloc gives threads arenas, whose heaps are mapped separately: 64 MiB of addresses each."],
  main_stack: ["stack of the main thread", "[stack]"],
  thread_stack: ["stacks of other threads", "Memory that contains a thread's stack pointer and has guard pages. A thread that runs does not show where its stack is: it counts as other anonymous memory."],
  stack_guard: ["guard pages of stacks", "Pages below a thread's stack that may not be accessed."],
  named_anon: ["anonymous, named by the program", "[anon:NAME], set with prctl(PR_SET_VMA)."],
  reserved: ["reserved addresses", "Anonymous memory that may not be accessed: it only reserves addresses."],
  anon: ["other anonymous memory", "mmap: large blocks of malloc, heaps of other allocators and of language runtimes."],
  code: ["code made at run time", "Executable anonymous memory, as just-in-time compilers make it."],
  executable: ["the program's own file", "Code and data of the executable."],
  library: ["shared libraries", "Files that are mapped as code, or named like libraries."],
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

/** The label of a category of mappings, and what it is. @returns {[string, string]} */
export function purpose(/** @type {string} */ category) {
  return PURPOSES[category] ?? [category, ""];
}

/** Why memory has no stack. */
export function reason(/** @type {string} */ name) {
  const reasons = /** @type {Record<string, string>} */ ({ before_attach: "before attach", no_event: "not observed", stack_lost: "stack lost", not_walked: "not walked" });
  return reasons[name] ?? name;
}

/** What memprof waits for, from the text of a reply without a report: `Waiting for a process named NAME`. */
export function awaited(/** @type {string} */ why) {
  const text = why.replace(/^no report at this time: /, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The label of code without a symbol in its file. */
export function noSymbol(/** @type {string} */ file) {
  return `[no symbol] (${file})`;
}

export const SELF = "Of stacks whose innermost frame is in this function: it touched or allocated the memory itself.";
export const TOTAL = "Of all stacks that contain this function; a recursive function counts each byte once.";

/** The help panel: [term, explanation]. */
export const TERMS = /** @type {[string, string][]} */ ([
  ["What is shown", "Memory that is in RAM now, under the call stack that first used it: the page fault, read or write that brought the page in. Memory that was allocated but never touched is not shown. Memory that was freed but that the allocator keeps is shown."],
  ["Sum equals kernel", "The sum of all rows is the figure that the kernel itself reports. The badge is green only when both readings of the kernel, before and after the page scan, equal the sum. While the target changes its memory, the two readings differ, and the badge shows by how much the sum can be off."],
  ["Before attach", "Memory that was already resident when memprof attached, so its stacks are unknown. It is shown by mapping. Start the program under memprof to get a stack for all memory."],
  ["Not observed", "Memory that became resident after memprof attached, but without an event that memprof observes."],
  ["Partial stack", "Unwinding did not reach the outermost frame. Such stacks start at their last known frame."],
  ["Estimates", "Kinds of the heap by stack (memprof --heap) are estimated from sampled allocations; --heap=exact counts every call of the allocation functions instead. With 95 % confidence the true figure is within the ± beside it; a figure that is not larger than that is shown as its limit, < 40 KiB."],
  ["Self and total", "Self is the memory that a function's own instructions touched; total also includes the functions that it calls."],
  ["Callees, callers", "Callees: from main down to the functions that it calls. Callers: from the functions that touched the memory up to their callers."],
]);

/** Keys: [key, action]. */
export const KEYS = /** @type {[string, string][]} */ ([
  ["/", "search"],
  ["?", "this help"],
  ["n N", "select the next match of the search, or the previous one; in the search box, Enter and Shift+Enter"],
  ["1 … 9, 0", "switch to a view, in the order of the tabs"],
  ["p", "pause or resume"],
  ["m", "set a mark"],
  ["← ↑ ↓ →", "move in the graph, the treemap and the tables"],
  ["Enter", "zoom into the selected node"],
  ["Backspace", "zoom out to the parent"],
  ["Escape", "leave one zoom level, back to what was shown before; close the help"],
]);

/** Which profile a process that was killed is known by. */
export function lastProfile(/** @type {import("./api.js").OomKill} */ { last }) {
  if (!last) return "no profile: it ended before its first one";
  return last.after_kill ? "a profile made after the kill" : `its last profile, ${span(last.age_ms)} before the kill`;
}
