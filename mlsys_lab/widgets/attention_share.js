// Fraction of a transformer's FLOPs in attention's scores and weighted sums, by sequence length.

const ATTENTION_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; }
svg .attention { fill: var(--value); opacity: 0.8; } svg .projections { fill: var(--gradient); opacity: 0.35; }
svg .mlp { fill: var(--muted); opacity: 0.45; } svg .head { fill: var(--line); opacity: 0.8; }
svg .edge { stroke: var(--ink); stroke-width: 1.6; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
svg .half { fill: var(--surface); stroke: var(--ink); stroke-width: 2; }
.parts { display: grid; grid-template-columns: repeat(auto-fit, minmax(270px, 1fr)); gap: 2px 24px; margin: 8px 0 0; padding: 0; list-style: none; }
.parts li { display: grid; grid-template-columns: 14px 1fr auto; gap: 8px; align-items: center; }
.parts i { width: 14px; height: 14px; border-radius: 3px; }
.parts .attention { background: var(--value); } .parts .projections { background: var(--gradient); opacity: 0.45; }
.parts .mlp { background: var(--muted); opacity: 0.6; } .parts .head { background: var(--line); }
.row label:not(.check) { display: flex; gap: 8px; align-items: center; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--value); }
`;

const LENGTHS = { low: 7, high: 22, step: 0.25 }; // powers of two
const PARTS = [
  ["attention", "scores and weighted sums", (f) => f.attention], ["projections", "attention's projections", (f) => f.query + f.keyValue + f.output],
  ["mlp", "MLP", (f) => f.mlp + f.router], ["head", "output head", (f) => f.head],
];

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "Attention's fraction of the FLOPs", AXES_STYLE + ATTENTION_STYLE);
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const grouped = (x) => x.toLocaleString("en-US", { maximumFractionDigits: 0 });
  const percent = (x) => `${number(Number((100 * x).toPrecision(3)))} %`;
  const lengthen = (exponent) => change({ tokens: Math.round(2 ** Math.min(LENGTHS.high, Math.max(LENGTHS.low, exponent))) });

  const form = sizeForm(model, change);
  const causal = checkBox("count what a causal mask lets through only", (on) => change({ causal: on }));
  const length = slide("Tokens of a sequence", { min: LENGTHS.low, max: LENGTHS.high, step: LENGTHS.step }, lengthen);
  const error = make("p", { class: "error", role: "alert" });
  const picture = make("div", { class: "picture" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  const parts = make("ul", { class: "parts" });
  const own = make("details", {}, make("summary", {}, "Sizes"), make("div", { class: "fields" }, ...form.nodes));
  box.append(make("div", { class: "row" }, form.preset.label, causal.label), own, error, picture, length.row, verdict, detail, parts);

  const drag = (event) => {
    if (area && event.buttons & 1) lengthen(Math.log2(area.xValue(event.clientX - area.svg.getBoundingClientRect().left)));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function show() {
    if (!width) return;
    form.show();
    causal.input.checked = model.get("causal");
    const [tokens, options] = [model.get("tokens"), { causal: model.get("causal") }];
    length.set(Math.log2(tokens), grouped(tokens));
    let config;
    try {
      config = completed(form.config());
      error.textContent = "";
    } catch (inputError) {
      error.textContent = inputError.message;
    }
    for (const node of [picture, verdict, detail, parts]) node.hidden = !config;
    if (!config) return;
    const flops = forwardFlops(config, tokens, options);
    const half = attentionCrossover(config, options.causal);
    picture.replaceChildren(drawing(config, tokens, options, half));
    verdict.textContent = `${percent(flops.attentionShare)} of the FLOPs at ${grouped(tokens)} tokens`;
    detail.textContent = half === Infinity
      ? "Never half: every layer has a sliding window."
      : `Half at ${grouped(half)} tokens, ${number(Number((half / config.d_model).toPrecision(3)))} times the width; the same forward and backward.`;
    if (config.window) detail.textContent += ` ${config.window.layers} of ${config.n_layers} layers attend to ${grouped(config.window.tokens)} tokens at most.`;
    parts.replaceChildren(...PARTS.map(([name, words, part]) =>
      make("li", {}, make("i", { class: name }), make("span", {}, words), make("span", {}, percent(part(flops) / flops.total)))));
  }

  function drawing(config, tokens, options, half) {
    const height = Math.round(Math.max(280, Math.min(380, width * 0.5)));
    const [low, high] = [2 ** LENGTHS.low, 2 ** LENGTHS.high];
    const short = (v) => (v >= 2 ** 20 ? `${v / 2 ** 20}M` : v >= 1024 ? `${v / 1024}K` : String(v));
    const across = logAxis({ low, high, base: 2, title: "tokens of a sequence (K is 1,024)", word: short });
    const up = linearAxis({ low: 0, high: 1, title: "part of all FLOPs", word: percent, most: 4 });
    area = plot({ width, height, x: across, y: up, label: `Attention's fraction of the FLOPs of ${config.name} against tokens${half === Infinity ? "" : `: one half at ${grouped(half)}`}` });
    const values = Array.from({ length: 91 }, (_, i) => across.value(i / 90));
    const counts = values.map((v) => forwardFlops(config, v, options));
    let below = values.map(() => 0);
    for (const [name, , part] of PARTS) {
      const above = counts.map((flops, i) => below[i] + part(flops) / flops.total);
      const points = [...above.map((y, i) => [values[i], y]), ...below.map((y, i) => [values[i], y]).reverse()];
      area.inside.append(draw("path", { class: name, d: `M${points.map(([x, y]) => `${area.x(x).toFixed(2)} ${area.y(y).toFixed(2)}`).join("L")}Z` }));
      below = above;
    }
    const share = (v) => forwardFlops(config, v, options).attentionShare;
    const [x, y, middle] = [area.x(tokens), area.y(share(tokens)), area.y(0.5)];
    area.inside.append(
      curve(area, across, share, { class: "edge" }),
      draw("line", { class: "at", x1: x, x2: x, y1: area.y1, y2: area.y0 }), draw("line", { class: "drop", x1: area.x0, x2: area.x1, y1: middle, y2: middle }));
    area.marks.append(draw("circle", { class: "dot", cx: x, cy: y, r: 8 }));
    if (half >= low && half <= high) {
      area.marks.append(
        draw("circle", { class: "half", cx: area.x(half), cy: middle, r: 5 }),
        area.text({ x: area.x(half) - 10, y: middle - 9, "text-anchor": "end", class: "halo" }, `½ at ${grouped(half)}`));
    }
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["preset", "own", "tokens", "causal"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-attention_share", render);
export default { render };
