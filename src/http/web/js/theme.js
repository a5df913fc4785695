// Dark or light: the system's setting, until the button overrides it. Colours for the canvases.

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
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The theme chosen with the button; `null` for the system's setting. */
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
    // Storage is not available: the theme applies to this page only.
  }
  useTheme(theme);
}
