// Dark or light: as the system says, until the button says otherwise. Colours for the canvases.

const KEY = "memprof-theme";
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);

/** The colour that style.css gives a name, as a canvas takes it. */
export function colour(/** @type {string} */ name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** What was chosen by the button; `null` for as the system says. */
function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function useTheme(theme = stored()) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
}

export function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It holds for this page only.
  }
  useTheme(theme);
}
