// Selects the report that the page shows: the newest one or a mark's, of all processes, a control group's or one process.

import { byId, h, replace, setProperties, setText } from "./dom.js";
import { clock } from "./format.js";
import { change, state } from "./state.js";

/** @typedef {import("./api.js").Summary} Summary */

/** Whether a mark, a single process or a control group is selected. */
export const hasSelection = () => state.pid !== "" || state.cgroup !== "" || state.mark !== "";
/** The value of a control group in the list of processes. */
const GROUP = "cgroup";

/** Offers the processes of a report if there are several. */
export function offerProcesses(/** @type {Summary["target"]} */ { pids }) {
  const box = byId("process");
  // An ended process stays selected until the user selects another one.
  const known = state.pid === "" || pids.includes(Number(state.pid)) ? pids : [...pids, Number(state.pid)];
  box.hidden = known.length < 2 && state.pid === "" && state.cgroup === "";
  const group = state.cgroup ? [h("option", { value: GROUP }, `processes in ${state.cgroup}`)] : [];
  const signature = [state.cgroup, ...known].join();
  if (box.dataset.pids !== signature) {
    box.dataset.pids = signature;
    replace(box, h("option", { value: "" }, `all ${known.length} processes`), ...group, ...known.map((pid) => h("option", { value: String(pid) }, `process ${pid}`)));
  }
  box.value = state.pid || (state.cgroup && GROUP);
}

/** While a mark is shown, offers the newest report. */
export function offerNewest() {
  byId("now").hidden = state.mark === "";
  const moment = /^@\d+$/.test(state.mark) ? clock(Number(state.mark.slice(1))) : `Mark ${state.mark}`;
  setText(byId("now"), `${moment}: back to ${document.body.classList.contains("saved") ? "the opened moment" : "now"}`);
}

const settingsFor = (/** @type {string} */ value) => (value === GROUP ? { pid: "" } : { pid: value, cgroup: value ? state.cgroup : "" });

/** Installs the event listeners. */
export function watchSelection() {
  byId("process").addEventListener("change", () => change({ ...settingsFor(byId("process").value), zoom: "", sel: "", page: "0", file: "" }, true));
  byId("now").addEventListener("click", () => change({ mark: "" }, true));
  setProperties(byId("process"), { "aria-label": "Process" });
}
