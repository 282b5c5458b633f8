// IsoFLOP curves (Hoffmann et al., 2022, section 3.2): on a budget of C = 6ND FLOPs, the loss against the size N that it is spent on.

const ISOFLOP_STYLE = `
.picture { touch-action: pan-y; }
svg .curve { stroke: var(--muted); stroke-width: 1.2; opacity: 0.55; }
svg .chosen { stroke: var(--value); stroke-width: 3; }
svg .valley { stroke: var(--muted); stroke-width: 1.4; stroke-dasharray: 2 4; }
svg .fit { stroke: var(--gradient); stroke-width: 2; stroke-dasharray: 7 4; }
svg .run { fill: var(--raised); stroke: var(--gradient); stroke-width: 2; }
svg .found { fill: var(--gradient); stroke: var(--surface); stroke-width: 2; }
svg .least { fill: var(--value); stroke: var(--surface); stroke-width: 2; cursor: ew-resize; }
.fit-words { margin: 2px 0 0; }
.fit-words::before { content: "– – "; color: var(--gradient); font-weight: 700; }
.fit-words:empty { display: none; }
`;

const BUDGETS = { low: 17, high: 26, step: 0.05 }; // powers of ten, in FLOP
const CONSTANTS = ["E", "A", "alpha", "B", "beta", "gamma"];
const GREEK = { alpha: "α", beta: "β", gamma: "γ" };

// Loss of N parameters after D tokens: E + (A/N^α + B/D^β)^γ. γ = 1 is the form of Hoffmann et al., equation 2; E = 0,
// β = 1 and γ = α_D that of Kaplan et al. (2020), equation 1.5, with A = N_c^α and B = D_c.
function lossOf(law, N, D) {
  return law.E + (law.A / N ** law.alpha + law.B / D ** law.beta) ** law.gamma;
}

function balance({ A, B, alpha, beta }) {
  return ((alpha * A) / (beta * B)) ** (1 / (alpha + beta));
}

// The size and the tokens of least loss with 6ND = C: Hoffmann et al., equation 4. The power γ does not move it.
function optimum(law, C) {
  const N = balance(law) * (C / 6) ** (law.beta / (law.alpha + law.beta));
  const D = C / (6 * N);
  return { N, D, loss: lossOf(law, N, D) };
}

// The budget whose optimum has N parameters.
function budgetOf(law, N) {
  return 6 * (N / balance(law)) ** ((law.alpha + law.beta) / law.beta);
}

// The parabola of least squares through loss against ln N, and the N at its lowest point: null where it has none.
function parabola(runs) {
  const middle = runs.reduce((sum, run) => sum + Math.log(run.N), 0) / runs.length;
  const rows = runs.map((run) => [1, Math.log(run.N) - middle, (Math.log(run.N) - middle) ** 2, run.loss]);
  const moment = (i, j) => rows.reduce((sum, row) => sum + row[i] * row[j], 0);
  const system = [0, 1, 2].map((i) => [0, 1, 2, 3].map((j) => moment(i, j)));
  for (let i = 0; i < 3; i++) {
    for (let k = 0; k < 3; k++) {
      if (k === i) continue;
      const factor = system[k][i] / system[i][i];
      for (let j = i; j < 4; j++) system[k][j] -= factor * system[i][j];
    }
  }
  const [c, b, a] = system.map((row, i) => row[3] / row[i]);
  const value = (N) => c + b * (Math.log(N) - middle) + a * (Math.log(N) - middle) ** 2;
  const N = a > 0 ? Math.exp(middle - b / (2 * a)) : null;
  return { value, N, loss: N === null ? null : value(N) };
}

// Normal deviates from a seed: mulberry32 and Box–Muller, the same on every machine.
function deviates(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

// Nine runs on one budget, from a quarter to four times the best size, each loss with normal noise.
function noisyRuns(law, C, noise, seed) {
  const normal = deviates(seed);
  const best = optimum(law, C).N;
  return Array.from({ length: 9 }, (_, i) => {
    const N = best * 4 ** ((i - 4) / 4);
    return { N, loss: lossOf(law, N, C / (6 * N)) + noise * normal() };
  });
}

// One line on what no law can have, or "".
function lawProblem(law) {
  const wrong = CONSTANTS.find((name) => !(name === "E" ? law.E >= 0 : law[name] > 0) || !Number.isFinite(law[name]));
  if (!wrong) return "";
  const got = Number.isNaN(law[wrong]) || law[wrong] == null ? "nothing" : number(law[wrong]);
  return `${GREEK[wrong] ?? wrong}: got ${got}, expected ${wrong === "E" ? "0 or more" : "a number above 0"}`;
}

function render({ model, el }) {
  const laws = model.get("laws");
  const { box, stop } = stage(el, model.get("title") ?? "IsoFLOP curves", AXES_STYLE + ISOFLOP_STYLE);
  let width = 0;
  let area = null;

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const named = () => laws.find((one) => one.name === model.get("law"));
  const law = () => named() ?? model.get("own");
  // A constant as a field shows it: six digits, and none of the zeros of a large one.
  const typed = (x) => (!Number.isFinite(x) ? "" : Math.abs(x) < 1e6 ? Number(x.toPrecision(6)) : x.toExponential(5).replace(/\.?0*e\+/, "e"));
  const spend = (exponent) => change({ budget: 10 ** Math.min(BUDGETS.high, Math.max(BUDGETS.low, exponent)) });

  const lawMenu = menu("Law", [...laws.map((one) => [one.name, one.name]), ["own", "own constants"]], (name) =>
    change(name === "own" ? { own: { ...law() }, law: "own" } : { law: name }));
  const fields = CONSTANTS.map((name) => ({
    name, ...numberField(GREEK[name] ?? name, { min: 0 }, (value) => change({ own: { ...law(), [name]: value }, law: "own" })),
  }));
  const budget = slide("Budget", { min: BUDGETS.low, max: BUDGETS.high, step: BUDGETS.step }, spend);
  lawMenu.label.classList.add("wide");
  const runs = checkBox("noisy runs and their parabola", (on) => change({ runs: on }));
  const noise = slide("Noise", { min: 0, max: 0.05, step: 0.001 }, (value) => change({ noise: value }));
  const again = make("button", { type: "button", click: () => change({ seed: model.get("seed") + 1 }) }, "run again");
  const picture = make("div", { class: "picture" });
  const error = make("p", { class: "error", role: "alert" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  const fitWords = make("p", { class: "fit-words", "aria-live": "polite" });
  const source = make("p", { class: "detail" });
  box.append(
    make("div", { class: "fields" }, lawMenu.label, ...fields.map((one) => one.label)), source, error, picture, budget.row, verdict, detail,
    make("div", { class: "row" }, runs.label, again), noise.row, fitWords);

  // Dragging across the picture asks for the budget whose optimum lies under the pointer, unless the axes follow the optimum.
  const drag = (event) => {
    if (!area || model.get("runs") || !(event.buttons & 1)) return;
    const at = event.clientX - area.svg.getBoundingClientRect().left;
    spend(Math.log10(budgetOf(law(), area.xValue(at))));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function show() {
    if (!width) return;
    const now = law();
    lawMenu.input.value = named() ? named().name : "own";
    for (const { name, input, label } of fields) {
      input.value = typed(now[name]);
      label.hidden = name === "gamma" && named()?.gamma === 1;
    }
    source.textContent = named()?.about ?? "Constants of your own.";
    runs.input.checked = model.get("runs");
    noise.set(model.get("noise"), number(model.get("noise")));
    noise.row.hidden = again.hidden = !model.get("runs");
    const problem = lawProblem(now);
    error.textContent = problem;
    picture.hidden = verdict.hidden = detail.hidden = Boolean(problem);
    const C = model.get("budget");
    budget.set(Math.log10(C), `${power(C)} FLOP`);
    fitWords.textContent = "";
    if (problem) return;
    const best = optimum(now, C);
    const points = model.get("runs") ? noisyRuns(now, C, model.get("noise"), model.get("seed")) : [];
    const fit = points.length ? parabola(points) : null;
    picture.replaceChildren(drawing(now, C, best, points, fit));
    verdict.textContent = `${amount(best.N)} parameters on ${amount(best.D)} tokens: ${amount(best.D / best.N)} tokens per parameter`;
    detail.textContent = `Loss ${number(Number(best.loss.toPrecision(4)))} at 6ND = ${power(C)} FLOP.`;
    if (fit) {
      fitWords.textContent = fit.N === null
        ? "The parabola through these runs opens downwards: it has no minimum."
        : `The parabola through ${points.length} runs says ${amount(fit.N)} parameters, ${number(Number((fit.N / best.N).toPrecision(3)))} times the law's.`;
    }
  }

  function drawing(now, C, best, points, fit) {
    const height = Math.round(Math.max(310, Math.min(430, width * 0.56)));
    // All budgets in one picture; or, for runs whose noise would not be seen there, one budget's valley.
    const [small, large] = points.length ? [best, best] : [optimum(now, 10 ** BUDGETS.low), optimum(now, 10 ** BUDGETS.high)];
    const losses = points.length ? [...points.map((run) => run.loss), ...[1 / 6, 1, 6].map((k) => lossOf(now, k * best.N, best.D / k))] : [large.loss, small.loss];
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const across = logAxis({ low: small.N / 6, high: large.N * 6, title: "parameters N", word: (v) => amount(v).replace(" ", "") });
    const up = linearAxis({ low: low - (points.length ? 0.25 : 0.12) * (high - low), high: high + 0.2 * (high - low), title: "loss, nats per token", word: number });
    area = plot({
      width, height, x: across, y: up,
      label: `Loss against parameters on ${power(C)} FLOP, least at ${amount(best.N)} parameters and ${amount(best.D)} tokens`,
    });
    const along = (budget) => (N) => lossOf(now, N, budget / (6 * N));
    if (!points.length) {
      for (let e = BUDGETS.low; e <= BUDGETS.high; e++) area.inside.append(curve(area, across, along(10 ** e), { class: "curve" }));
      area.inside.append(curve(area, across, (N) => optimum(now, budgetOf(now, N)).loss, { class: "valley" }));
    }
    area.inside.append(curve(area, across, along(C), { class: "chosen" }));
    if (fit) {
      const [from, to] = [points[0].N / 1.6, points.at(-1).N * 1.6];
      area.inside.append(curve(area, logAxis({ low: from, high: to }), fit.value, { class: "fit" }));
      for (const run of points) area.inside.append(draw("circle", { class: "run", cx: area.x(run.N), cy: area.y(run.loss), r: 4.5 }));
      if (fit.N !== null) area.inside.append(draw("circle", { class: "found", cx: area.x(fit.N), cy: area.y(fit.loss), r: 6 }));
    }
    const [px, py] = [area.x(best.N), area.y(best.loss)];
    const anchor = px > (area.x0 + area.x1) / 2 ? "end" : "start";
    area.marks.append(
      draw("line", { class: "drop", x1: px, x2: px, y1: py, y2: area.y0 }),
      draw("circle", { class: "least", cx: px, cy: py, r: points.length ? 6 : 9 }),
      area.text({ x: px + (anchor === "end" ? -6 : 6), y: area.y0 - 8, "text-anchor": anchor, class: "halo" }, `N ${amount(best.N)}, D ${amount(best.D)}`));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["law", "own", "budget", "runs", "noise", "seed"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-isoflop", render);
export default { render };
