// The theme: the system's setting, until the button overrides it.

import { byId } from "./dom.js";

const KEY = "tezos-recorder-theme";

/** The theme selected with the button; `null` for the system's setting, or where nothing can be stored. */
function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function use(/** @type {string | null} */ theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}

function toggle() {
  const current = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const theme = current === "dark" ? "light" : "dark";
  use(theme);
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // The theme applies to this page only.
  }
}

/** Applies the theme, and lets the button change it. */
export function watchTheme() {
  use(stored());
  byId("theme").addEventListener("click", toggle);
}
