// Draws the page's Plotly figures in the reader's theme, with the site's one copy of Plotly beside this module's folder.

const COLOURS = {
  light: { ink: "#1d2733", grid: "#d9dfe6", ways: ["#1759b8", "#b4410e", "#26734d", "#7b3fa0", "#8a6d00", "#566373"] },
  dark: { ink: "#e6ebf1", grid: "#3a4552", ways: ["#82b5ff", "#ffab70", "#6fcf9f", "#cf9cf0", "#e3c14d", "#a3afbd"] },
};

function loadPlotly() {
  return new Promise((resolve, reject) => {
    const src = new URL("../plotly.min.js", import.meta.url).href;
    document.head.append(
      make("script", { src, load: () => resolve(globalThis.Plotly), error: () => reject(new Error(`cannot load ${src}`)) }),
    );
  });
}

// The figure's own layout wins over the theme's, but for what depends on the width.
function themed(layout, dark, width) {
  const { ink, grid, ways } = COLOURS[dark ? "dark" : "light"];
  const narrow = width < 560;
  const result = {
    colorway: ways, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    hoverlabel: { bgcolor: dark ? "#252d38" : "#ffffff", font: { color: ink } },
    ...layout,
    width,
    font: { family: "system-ui, sans-serif", size: narrow ? 12 : 14, ...layout.font, color: ink },
    margin: { l: narrow ? 52 : 68, r: narrow ? 10 : 24, t: layout.title ? 54 : 18, b: narrow ? 96 : 60, ...(narrow ? {} : layout.margin) },
    legend: { ...layout.legend, ...(narrow ? { orientation: "h", x: 0, xanchor: "left", y: -0.24, yanchor: "top" } : {}) },
  };
  const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))]);
  for (const axis of axes) {
    result[axis] = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, ...layout[axis] };
  }
  return result;
}

const nodes = [...document.querySelectorAll(".mlsys-plot")];
const Plotly = await loadPlotly();
for (const node of nodes) {
  const figure = JSON.parse(node.querySelector('script[type="application/json"]').textContent);
  const canvas = make("div");
  node.replaceChildren(canvas);
  let width = 0;
  let dark = isDark();
  const paint = () => {
    if (!width) return;
    const config = { displaylogo: false, displayModeBar: false };
    // Plotly writes into what it is given: a fresh copy each time keeps the figure's own values.
    Plotly.react(canvas, structuredClone(figure.data), themed(structuredClone(figure.layout), dark, width), config);
  };
  watchTheme((next) => {
    dark = next;
    paint();
  });
  watchWidth(node, (next) => {
    width = next;
    paint();
  });
}
