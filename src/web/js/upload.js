// Opens saved profiles: a dropped or chosen file becomes a mark, which every view can show and compare.

import { api } from "./api.js";
import { fill, h } from "./dom.js";
import { change } from "./state.js";

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));

/** Accepts files; `opened` is called when one was opened. */
export function acceptFiles(/** @type {() => Promise<void>} */ opened) {
  const take = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    const banner = at("banner");
    try {
      const mark = await api.openFile(file);
      banner.hidden = true;
      await opened();
      change({ mark: mark.id, pid: "", zoom: "", sel: "", file: "" }, true);
    } catch (error) {
      fill(banner, h("strong", {}, `${file.name} could not be opened. `), error instanceof Error ? error.message : "");
      banner.hidden = false;
    }
  };
  const holdsFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) document.body.classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    take(event.dataTransfer?.files[0]);
  });
  at("open").addEventListener("click", () => at("file").click());
  at("file").addEventListener("change", () => {
    take(at("file").files[0]);
    // The same file may be chosen again.
    at("file").value = "";
  });
}
