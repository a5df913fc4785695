// Which report is shown: the newest one or a mark's, of all processes or of one.

import { fill, h, say, set } from "./dom.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

/** Whether a mark or a single process is selected. */
export const chosen = () => state.pid !== "" || state.mark !== "";

/** Offers the processes of a report if there are several. */
export function offerProcesses(/** @type {Summary["target"]} */ { pids }) {
  const box = at("process");
  // An ended process stays selected until the user selects another one.
  const known = state.pid === "" || pids.includes(Number(state.pid)) ? pids : [...pids, Number(state.pid)];
  box.hidden = known.length < 2 && state.pid === "";
  const signature = known.join();
  if (box.dataset.pids !== signature) {
    box.dataset.pids = signature;
    fill(box, h("option", { value: "" }, `all ${known.length} processes`), ...known.map((pid) => h("option", { value: String(pid) }, `process ${pid}`)));
  }
  box.value = state.pid;
}

/** Offers the button that leads from a mark back to now. */
export function offerNow() {
  at("now").hidden = state.mark === "";
  say(at("now"), `Mark ${state.mark}: back to now`);
}

/** Installs the event listeners. */
export function listen() {
  at("process").addEventListener("change", () => change({ pid: at("process").value, zoom: "", sel: "", page: "0", file: "" }, true));
  at("now").addEventListener("click", () => change({ mark: "" }, true));
  set(at("process"), { "aria-label": "Process" });
}
