// The main module of a heap snapshot in one HTML file (`memprof heap --format html`): the view of one snapshot.

import { byId, h, messageOf, notice, replace } from "../dom.js";
import { bytes, exact } from "../format.js";
import { embeddedData } from "../offline.js";
import { followLink, onChange } from "../state.js";
import { watchTheme } from "../theme.js";
import { HeapView } from "../views/heap.js";

/** @typedef {import("../api.js").HeapInfo} HeapInfo */

/** The figures at the top: [name, explanation, bytes]. @returns {[string, string, number | null][]} */
function figures(/** @type {HeapInfo} */ info) {
  return [
    ["in use", "Resident contents of chunks in use", info.live],
    ["free", "Resident free bytes", info.free],
    ["allocator’s own", "Resident bytes of the allocator: headers, arenas, alignment", info.overhead],
    ["trimmable", "Bytes that malloc_trim(0) would return to the system now", info.trimmable],
    ["unreachable", "Contents of chunks that nothing refers to, resident or not", info.unreachable],
    ["anonymous memory", "All resident anonymous memory of the process", info.anonymous],
  ];
}

/** Shows the process and the figures at the top. */
function showHeader(/** @type {HeapInfo} */ info) {
  const title = `${info.comm} (pid ${info.pid})`;
  byId("target").textContent = title;
  document.title = `${info.comm} – memprof heap`;
  byId("taken").textContent = `taken on ${new Date(info.taken).toLocaleString("en-GB")}`;
  const shown = figures(info).filter(([, , figure]) => figure !== null);
  replace(byId("totals"), ...shown.map(([name, title, figure]) => h("div", { class: "total", title }, h("dt", {}, name), h("dd", { "data-bytes": figure, title: exact(Number(figure)) }, bytes(Number(figure))))));
}

/** @type {HeapView | null} */
let view = null;

async function start() {
  try {
    const whole = /** @type {any} */ (await embeddedData());
    showHeader(whole.snapshot);
    const created = new HeapView({ list: async () => [whole.snapshot], get: async () => whole });
    onChange((changed) => (changed.has("hby") ? created.refresh() : created.show()));
    view = created;
    addEventListener("keydown", (event) => event.key === "Escape" && created.graph?.zoomBack());
    followLink();
    await created.refresh();
    replace(byId("content"), created.element);
    created.show();
    performance.mark("memprof-painted");
  } catch (error) {
    replace(byId("content"), notice("This heap snapshot cannot be shown", messageOf(error), "error"));
  }
}

watchTheme(() => view?.show());
start();
