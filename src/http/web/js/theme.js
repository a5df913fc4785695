// The theme: the system's setting, until the button overrides it; and its colours, for canvases.

import { byId } from "./dom.js";

const KEY = "memprof-theme";
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);

/** The colour of a CSS variable, in a form that a canvas accepts. */
export function colour(/** @type {string} */ name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function isDark() {
  const selected = document.documentElement.dataset.theme;
  return selected ? selected === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The theme selected with the button; `null` for the system's setting. */
function storedTheme() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function useTheme(theme = storedTheme()) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Storage is not available: the theme applies to this page only.
  }
  useTheme(theme);
}

/** Applies the theme; calls `redraw` after each change of it. */
export function watchTheme(/** @type {() => void} */ redraw) {
  useTheme();
  byId("theme").addEventListener("click", () => {
    toggleTheme();
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
