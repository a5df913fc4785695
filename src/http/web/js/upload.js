// Uploads saved profiles: a dropped or selected file becomes a mark, which every view can show and compare.

import { api } from "./api.js";
import { byId, hideBanner, messageOf, showBanner } from "./dom.js";
import { change } from "./state.js";

/** Accepts files; `opened` is called after each upload. */
export function acceptFiles(/** @type {() => Promise<void>} */ opened) {
  const upload = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    try {
      const mark = await api.openFile(file);
      hideBanner();
      await opened();
      change({ mark: mark.id, pid: "", zoom: "", sel: "", file: "" }, true);
    } catch (error) {
      showBanner(`${file.name} could not be opened.`, messageOf(error));
    }
  };
  const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) document.body.classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    upload(event.dataTransfer?.files[0]);
  });
  byId("open").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => {
    upload(byId("file").files[0]);
    // Without this, selecting the same file again would not be a change.
    byId("file").value = "";
  });
}
