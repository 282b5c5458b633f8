// What a visitor sees of a page in its present width and theme, as plain data. Evaluated by test_site.py.
() => {
  const visible = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(node).visibility !== "hidden";
  };
  const name = (node) => `${node.localName}.${[...node.classList].join(".")}`;

  // Colours ----------------------------------------------------------------------------------------------------------
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = new Map();
  function rgba(colour) {
    if (!parsed.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      parsed.set(colour, [r, g, b, a / 255]);
    }
    return parsed.get(colour);
  }
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const parent = (node) => node.parentElement ?? (node.getRootNode() instanceof ShadowRoot ? node.getRootNode().host : null);

  // Painted layers under a node, the nearest first: its own backgrounds, and shapes filled under its middle in an SVG.
  // A line that crosses there is no background.
  function background(node) {
    const layers = [];
    if (node instanceof SVGElement) {
      node.scrollIntoView({ block: "center", behavior: "instant" });
      const box = node.getBoundingClientRect();
      const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
      for (const shape of node.getRootNode().elementsFromPoint(middle.x, middle.y)) {
        if (!(shape instanceof SVGGeometryElement)) continue;
        if (!shape.isPointInFill(middle.matrixTransform(shape.getScreenCTM().inverse()))) continue;
        const style = getComputedStyle(shape);
        const fill = style.fill === "none" ? [0, 0, 0, 0] : rgba(style.fill);
        layers.push([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity]);
      }
    }
    for (let at = node; at; at = parent(at)) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  }

  function texts(root, found = []) {
    for (const node of root.querySelectorAll("*")) {
      if (node.shadowRoot) texts(node.shadowRoot, found);
      const own = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
      if (own && !["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(node.nodeName) && visible(node)) found.push(node);
    }
    return found;
  }

  const faint = new Map();
  const scroll = [scrollX, scrollY];
  for (const node of texts(document.querySelector("main") ?? document.body)) {
    // Formulas inherit their paragraph's colour; a disabled control is faint on purpose.
    if (node.closest("mjx-container, :disabled, .headerlink")) continue;
    const style = getComputedStyle(node);
    const ink = rgba(node instanceof SVGElement ? style.fill : style.color);
    const key = `${ink}|${parent(node) && name(parent(node))}|${name(node)}`;
    if (faint.has(key)) continue;
    const paper = background(node);
    const ratio = contrast(over([...ink.slice(0, 3), ink[3] * style.opacity], paper), paper);
    // Signs need less than words; large words less than small ones.
    const large = node.matches("[role=img]") || parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const said = `${ratio.toFixed(2)} ${name(node)} "${node.textContent.trim().slice(0, 40)}" ${ink} on ${paper.map(Math.round)}`;
    faint.set(key, ratio < (large ? 3 : 4.5) ? said : null);
  }
  scrollTo(...scroll);

  // Width ------------------------------------------------------------------------------------------------------------
  const overflow = document.documentElement.scrollWidth - innerWidth;
  const clipped = (node) => node && node !== document.body && (getComputedStyle(node).overflowX !== "visible" || clipped(node.parentElement));
  const beyond = (node) => node.getBoundingClientRect().right > innerWidth + 0.5 && !clipped(node.parentElement);
  const wide = overflow > 0 ? [...document.querySelectorAll("main *")].filter(beyond) : [];

  // Figures and formulas -----------------------------------------------------------------------------------------------
  const formulas = [...document.querySelectorAll(".math")];
  const charts = [...document.querySelectorAll(".chart")];
  const figures = [...document.querySelectorAll("*")].filter((node) => node.localName.startsWith("mlsys-"));
  const drawn = (chart) => [...chart.querySelectorAll("svg[class^=chart-]")].filter(visible).length === 1;
  const alive = (node) => node.matches(":defined") && node.shadowRoot?.querySelector("svg > *, .plans > li");
  return {
    faint: [...faint.values()].filter(Boolean),
    overflow: overflow > 0 ? `${overflow} px: ${wide.slice(0, 3).map(name).join(", ")}` : "",
    formulas: formulas.length,
    unset: formulas.filter((node) => !node.querySelector("mjx-container")).map((node) => node.textContent.slice(0, 60)),
    wrong: [...document.querySelectorAll("mjx-merror")].map((node) => node.textContent.slice(0, 60)),
    charts: charts.length,
    blank: charts.filter((chart) => !drawn(chart)).map((chart) => chart.getAttribute("aria-label")),
    figures: figures.map((node) => node.localName),
    dead: figures.filter((node) => !alive(node)).map(name),
  };
}
