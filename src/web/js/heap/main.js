// The main module of a heap snapshot in one HTML file (src/export/html/heap.rs): the view of one snapshot.

import { fill, h, notice } from "../dom.js";
import { bytes, exact } from "../format.js";
import { contents } from "../offline.js";
import { follow, onChange } from "../state.js";
import { toggleTheme, useTheme } from "../theme.js";
import { HeapView } from "../views/heap.js";

/** @typedef {import("../api.js").HeapInfo} HeapInfo */

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

/** The figures at the top: [name, what it counts, bytes]. @returns {[string, string, number | null][]} */
function figures(/** @type {HeapInfo} */ info) {
  return [
    ["in use", "Resident contents of chunks in use", info.live],
    ["free", "Resident free bytes", info.free],
    ["allocator’s own", "Its resident bytes: headers, arenas, alignment", info.overhead],
    ["trimmable", "What malloc_trim(0) would return to the system now", info.trimmable],
    ["unreachable", "Contents of chunks that nothing refers to, resident or not", info.unreachable],
    ["anonymous memory", "All resident anonymous memory of the process", info.anonymous],
  ];
}

/** Shows which process it is, and the sums. */
function head(/** @type {HeapInfo} */ info) {
  const title = `${info.comm} (pid ${info.pid})`;
  at("target").textContent = title;
  document.title = `${info.comm} – memprof heap`;
  at("taken").textContent = `taken on ${new Date(info.taken).toLocaleString("en-GB")}`;
  const shown = figures(info).filter(([, , figure]) => figure !== null);
  fill(at("totals"), ...shown.map(([name, title, figure]) => h("div", { class: "total", title }, h("dt", {}, name), h("dd", { "data-bytes": figure, title: exact(Number(figure)) }, bytes(Number(figure))))));
}

async function start() {
  try {
    const whole = /** @type {any} */ (await contents());
    head(whole.snapshot);
    const view = new HeapView({ list: async () => [whole.snapshot], get: async () => whole });
    onChange((changed) => (changed.has("hby") ? view.refresh() : view.show()));
    at("theme").addEventListener("click", () => {
      toggleTheme();
      view.show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view.show());
    addEventListener("keydown", (event) => event.key === "Escape" && view.graph?.leave());
    follow();
    await view.refresh();
    fill(at("content"), view.element);
    view.show();
    performance.mark("memprof-painted");
  } catch (error) {
    fill(at("content"), notice("This heap snapshot cannot be shown", error instanceof Error ? error.message : String(error), "error"));
  }
}

useTheme();
start();
