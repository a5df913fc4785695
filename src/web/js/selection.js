// Which report is shown: the newest one or a mark's, of all processes, of a control group's, or of one.

import { fill, h, say, set } from "./dom.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

/** Whether a mark, a single process or a control group is selected. */
export const chosen = () => state.pid !== "" || state.cgroup !== "" || state.mark !== "";
/** What stands for a control group among the processes. */
const GROUP = "cgroup";

/** Offers the processes of a report if there are several. */
export function offerProcesses(/** @type {Summary["target"]} */ { pids }) {
  const box = at("process");
  // An ended process stays selected until the user selects another one.
  const known = state.pid === "" || pids.includes(Number(state.pid)) ? pids : [...pids, Number(state.pid)];
  box.hidden = known.length < 2 && state.pid === "" && state.cgroup === "";
  const group = state.cgroup ? [h("option", { value: GROUP }, `processes in ${state.cgroup}`)] : [];
  const signature = [state.cgroup, ...known].join();
  if (box.dataset.pids !== signature) {
    box.dataset.pids = signature;
    fill(box, h("option", { value: "" }, `all ${known.length} processes`), ...group, ...known.map((pid) => h("option", { value: String(pid) }, `process ${pid}`)));
  }
  box.value = state.pid || (state.cgroup && GROUP);
}

/** Offers the button that leads from a mark back to now. */
export function offerNow() {
  at("now").hidden = state.mark === "";
  say(at("now"), `Mark ${state.mark}: back to now`);
}

const choice = (/** @type {string} */ value) => (value === GROUP ? { pid: "" } : { pid: value, cgroup: value ? state.cgroup : "" });

/** Installs the event listeners. */
export function listen() {
  at("process").addEventListener("change", () => change({ ...choice(at("process").value), zoom: "", sel: "", page: "0", file: "" }, true));
  at("now").addEventListener("click", () => change({ mark: "" }, true));
  set(at("process"), { "aria-label": "Process" });
}
