// Functions of all figures. `esm(name)` prepends this file to a figure's own, so that each figure is one ES module
// without imports: a custom element on the site, anywidget's `_esm` in a notebook.

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Whole numbers in full, else 4 significant digits, a true minus sign, no trailing zeros.
function number(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "−∞";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x).replace("-", "−");
  const text = x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6) ? x.toExponential(2) : String(Number(x.toPrecision(4)));
  return text.replaceAll("-", "−");
}

// 3 significant digits with an SI prefix: si(9.9e14, "FLOP/s") is "990 TFLOP/s".
function si(x, unit) {
  if (x === 0 || !Number.isFinite(x)) return `${number(x)} ${unit}`;
  const steps = ["n", "µ", "m", "", "k", "M", "G", "T", "P", "E"];
  // Round before choosing the prefix, or 999.9 G would be printed as "1000 G".
  const rounded = Number(x.toPrecision(3));
  const index = Math.min(9, Math.max(0, Math.floor(Math.log10(Math.abs(rounded)) / 3) + 3));
  return `${Number((rounded / 1000 ** (index - 3)).toPrecision(3))} ${steps[index]}${unit}`.replace("-", "−");
}

// Throws an error of one line: what was wrong, got, expected, and help.
function throwInputError(what, { got, expected, help } = {}) {
  const parts = [got === undefined ? "" : `got ${got}`, expected === undefined ? "" : `expected ${expected}`].filter(Boolean);
  throw new Error(what + (parts.length ? `: ${parts.join(", ")}` : "") + (help ? `; help: ${help}` : ""));
}

// The page's theme takes precedence over the system's: the book and Colab mark <html>, JupyterLab and VS Code <body>.
function isDark() {
  const { documentElement: html, body } = document;
  const named = html.dataset.theme ?? html.getAttribute("theme");
  if (named === "dark" || named === "light") return named === "dark";
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.classList.contains("vscode-dark")) return true;
  if (body.classList.contains("vscode-light")) return false;
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Calls `then(dark)` now and whenever the theme changes; returns a function that stops it.
function watchTheme(then) {
  const notify = () => then(isDark());
  const observer = new MutationObserver(notify);
  const options = { attributes: true, attributeFilter: ["data-theme", "theme", "class", "data-jp-theme-light"] };
  observer.observe(document.documentElement, options);
  observer.observe(document.body, options);
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", notify);
  notify();
  return () => {
    observer.disconnect();
    media.removeEventListener("change", notify);
  };
}

// Calls `then(width)` with the content width in CSS pixels, now and at every change; returns a function that stops it.
function watchWidth(node, then) {
  let width = 0;
  const notify = () => {
    const next = Math.floor(node.clientWidth);
    if (next <= 0 || next === width) return;
    width = next;
    then(width);
  };
  // A frame later: drawing inside the observer's own callback would be reported as a resize loop.
  const observer = new ResizeObserver(() => requestAnimationFrame(notify));
  observer.observe(node);
  notify();
  return () => observer.disconnect();
}

// Calls `then()` whenever one of the model's traits changes; returns a function that stops it.
function watchTraits(model, names, then) {
  for (const name of names) model.on(`change:${name}`, then);
  return () => {
    for (const name of names) model.off(`change:${name}`, then);
  };
}

const STYLE = `
:host { display: block; }
.figure {
  --ink: #1d2733; --muted: #566373; --line: #c9d1da; --surface: #f6f8fa; --raised: #ffffff;
  --value: #1759b8; --gradient: #b4410e; --soft-value: #dbe9fb; --soft-gradient: #fde5d6; --bad: #b3152b;
  color: var(--ink); background: var(--surface); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; margin: 4px 0 16px; box-sizing: border-box; color-scheme: light;
  font: 15px/1.5 var(--pst-font-family-base, var(--jp-ui-font-family, system-ui, sans-serif)); font-variant-numeric: tabular-nums;
}
@media screen {
  .figure[data-theme="dark"] {
    --ink: #e6ebf1; --muted: #a3afbd; --line: #3a4552; --surface: #1a2029; --raised: #252d38;
    --value: #82b5ff; --gradient: #ffab70; --soft-value: #1c3557; --soft-gradient: #4a2e1c; --bad: #ff8f9c; color-scheme: dark;
  }
}
.figure:focus-visible, .figure :focus-visible { outline: 2px solid var(--value); outline-offset: 2px; }
svg { display: block; margin: 0 auto; max-width: 100%; height: auto; font-family: inherit; }
svg text { fill: var(--ink); }
button, select, input[type="number"] {
  font: inherit; color: inherit; background: var(--raised); border: 1px solid var(--line); border-radius: 6px;
  min-height: 34px; padding: 2px 10px; box-sizing: border-box;
}
button { cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--value); }
button:disabled { opacity: 0.4; cursor: default; }
button svg { width: 16px; height: 16px; fill: currentColor; }
input[type="range"] { accent-color: var(--value); min-width: 0; }
.row { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
@media print {
  .figure { break-inside: avoid; background: none; }
  button, input[type="range"] { display: none; }
}
`;

// A labelled box in `el` that follows the theme and is isolated from the page's style sheets.
function stage(el, label, style) {
  const root = el.shadowRoot ?? el.attachShadow({ mode: "open" });
  const box = make("div", { class: "figure", role: "group", "aria-label": label });
  root.replaceChildren(make("style", {}, STYLE + style), box);
  // Outside the shadow root, a key typed into a field looks like one typed at the page: JupyterLab would delete cells,
  // and the book would turn pages. Combinations, such as the book's Ctrl+K, still reach the page.
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  box.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  return { box, stop: watchTheme((dark) => (box.dataset.theme = dark ? "dark" : "light")) };
}

// The part of anywidget's model that figures use, on fixed data: the site has no kernel.
function plainModel(data) {
  const listeners = {};
  return {
    get: (name) => data[name],
    set(name, value) {
      data[name] = value;
      for (const then of listeners[`change:${name}`] ?? []) then();
    },
    save_changes() {},
    on(event, then) {
      listeners[event] = [...(listeners[event] ?? []), then];
    },
    off(event, then) {
      listeners[event] = (listeners[event] ?? []).filter((one) => one !== then);
    },
  };
}

// <tag><script type="application/json">data</script>fallback</tag>; the fallback shows until the figure covers it.
function register(tag, render) {
  if (!globalThis.customElements || customElements.get(tag)) return;
  customElements.define(
    tag,
    class extends HTMLElement {
      connectedCallback() {
        const data = JSON.parse(this.querySelector('script[type="application/json"]').textContent);
        this.cleanup = render({ model: plainModel(data), el: this });
      }
      disconnectedCallback() {
        this.cleanup?.();
      }
    },
  );
}

