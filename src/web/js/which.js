// Which report is shown: the newest one or a mark's, of every process or of one.

import { fill, h, say, set } from "./dom.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

/** Whether it is not simply the newest one of every process. */
export const chosen = () => state.pid !== "" || state.mark !== "";

/** Offers the processes of a report, where there are several. */
export function offerProcesses(/** @type {Summary["target"]} */ { pids }) {
  const box = at("process");
  // A process that is gone stays chosen until another one is.
  const known = state.pid === "" || pids.includes(Number(state.pid)) ? pids : [...pids, Number(state.pid)];
  box.hidden = known.length < 2 && state.pid === "";
  const signature = known.join();
  if (box.dataset.pids !== signature) {
    box.dataset.pids = signature;
    fill(box, h("option", { value: "" }, `all ${known.length} processes`), ...known.map((pid) => h("option", { value: String(pid) }, `process ${pid}`)));
  }
  box.value = state.pid;
}

/** Offers the way back from a mark. */
export function offerNow() {
  at("now").hidden = state.mark === "";
  say(at("now"), `Mark ${state.mark}: back to now`);
}

/** Starts to listen to the choices. */
export function listen() {
  at("process").addEventListener("change", () => change({ pid: at("process").value, zoom: "", sel: "", page: "0", file: "" }, true));
  at("now").addEventListener("click", () => change({ mark: "" }, true));
  set(at("process"), { "aria-label": "Process" });
}
