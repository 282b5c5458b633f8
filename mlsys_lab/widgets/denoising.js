// Sampling from noise to three classes with an exactly known denoiser, by solver, steps and guidance scale.

const DENOISING_STYLE = `
svg .ring { fill: none; stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 4; }
svg .path { fill: none; stroke: var(--muted); stroke-width: 1; opacity: 0.7; }
svg .class0 { fill: var(--value); } svg .class1 { fill: var(--gradient); } svg .class2 { fill: var(--ink); }
svg .point { stroke: var(--surface); stroke-width: 1; }
`;

const REACH = 2.9;
const RHO = 7;

// EDM's noise sigmas of a run with this number of steps; the last one is 0.
function noiseLevels({ sigma_min: low, sigma_max: high }, steps) {
  const [first, last] = [high ** (1 / RHO), low ** (1 / RHO)];
  const sigmas = Array.from({ length: steps }, (_, i) => (first + (steps > 1 ? i / (steps - 1) : 0) * (last - first)) ** RHO);
  return [...sigmas, 0];
}

// Expected clean point given a noisy point of a class at noise level sigma, with classifier-free guidance.
function denoise({ means, deviation }, point, sigma, label, scale) {
  const variance = deviation ** 2 + sigma ** 2;
  const kept = deviation ** 2 / variance;
  const toward = (mean) => point.map((one, axis) => kept * one + (1 - kept) * mean[axis]);
  const inClass = toward(means[label]);
  if (scale === 1) return inClass;
  const fits = means.map((mean) => -mean.reduce((sum, one, axis) => sum + (point[axis] - one) ** 2, 0) / (2 * variance));
  const highest = Math.max(...fits);
  const weights = fits.map((fit) => Math.exp(fit - highest));
  const total = weights.reduce((a, b) => a + b);
  const anyClass = toward([0, 1].map((axis) => means.reduce((sum, mean, k) => sum + (weights[k] / total) * mean[axis], 0)));
  return anyClass.map((one, axis) => one + scale * (inClass[axis] - one));
}

// A step of each solver from sigma to sigmaNext; `last` is the denoised point of the previous step.
const SOLVERS = {
  ddim(x, sigma, sigmaNext, { denoiser }) {
    const denoised = denoiser(x, sigma);
    return { x: x.map((one, axis) => denoised[axis] + (sigmaNext / sigma) * (one - denoised[axis])) };
  },
  heun(x, sigma, sigmaNext, { denoiser }) {
    const slope = (at, sigma) => denoiser(at, sigma).map((one, axis) => (at[axis] - one) / sigma);
    const first = slope(x, sigma);
    const ahead = x.map((one, axis) => one + (sigmaNext - sigma) * first[axis]);
    if (!sigmaNext) return { x: ahead };
    const second = slope(ahead, sigmaNext);
    return { x: x.map((one, axis) => one + ((sigmaNext - sigma) * (first[axis] + second[axis])) / 2) };
  },
  "dpm++"(x, sigma, sigmaNext, { denoiser, last }) {
    const denoised = denoiser(x, sigma);
    const ratio = last && sigmaNext ? Math.log(last.sigma / sigma) / Math.log(sigma / sigmaNext) : Infinity;
    const expected = denoised.map((one, axis) => one + (last ? (one - last.denoised[axis]) / (2 * ratio) : 0));
    return { x: x.map((one, axis) => (sigmaNext / sigma) * one + (1 - sigmaNext / sigma) * expected[axis]), last: { denoised, sigma } };
  },
  ddpm(x, sigma, sigmaNext, { denoiser, noise }) {
    const denoised = denoiser(x, sigma);
    const variance = sigmaNext ** 2 * (1 - (sigmaNext / sigma) ** 2);
    const kept = Math.sqrt(Math.max(0, sigmaNext ** 2 - variance)) / sigma;
    return { x: x.map((one, axis) => denoised[axis] + kept * (one - denoised[axis]) + Math.sqrt(variance) * noise[axis]) };
  },
};

// Every point before the first step and after each: [step][point] = [x, y].
function sample(data, solver, steps, scale) {
  const sigmas = noiseLevels(data, steps);
  const states = [data.noise[0].map((point) => point.map((one) => one * sigmas[0]))];
  const previous = data.classes.map(() => undefined);
  for (let i = 0; i < steps; i++) {
    states.push(states[i].map((point, j) => {
      const denoiser = (x, sigma) => denoise(data, x, sigma, data.classes[j], scale);
      const next = SOLVERS[solver](point, sigmas[i], sigmas[i + 1], { denoiser, last: previous[j], noise: data.noise[i + 1][j] });
      previous[j] = next.last;
      return next.x;
    }));
  }
  return states;
}

// Standard deviation of the points in their class, and distance of its mean from the true mean; 1 and 0 are exact.
function spreadOf({ means, classes, deviation }, points, sigma) {
  const exact = Math.sqrt(deviation ** 2 + sigma ** 2);
  let [squares, off] = [0, 0];
  means.forEach((mean, k) => {
    const own = points.filter((_, j) => classes[j] === k);
    const centre = [0, 1].map((axis) => own.reduce((sum, point) => sum + point[axis], 0) / own.length);
    squares += own.reduce((sum, point) => sum + Math.hypot(point[0] - centre[0], point[1] - centre[1]) ** 2, 0) / (2 * own.length);
    off += Math.hypot(centre[0] - mean[0], centre[1] - mean[1]);
  });
  return { spread: Math.sqrt(squares / means.length) / exact, off: off / means.length / exact };
}

function evaluationsOf(solver, steps, scale, numSteps) {
  const calls = solver === "heun" ? 2 * steps - (steps === numSteps ? 1 : 0) : steps;
  return Math.max(0, calls) * (scale === 1 ? 1 : 2);
}

// A circle, a square or a triangle: classes are distinguishable without colours.
function mark(k, [x, y], kind, r = 4.5) {
  const style = { class: `${kind} class${k}` };
  if (k === 0) return draw("circle", { ...style, cx: x, cy: y, r });
  if (k === 1) return draw("rect", { ...style, x: x - r, y: y - r, width: 2 * r, height: 2 * r });
  return draw("path", { ...style, d: `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z` });
}

function render({ model, el }) {
  const { box, stop } = stage(el, model.get("title") ?? "From noise to three classes", AXES_STYLE + STEPPER_STYLE + DENOISING_STYLE);
  const names = ["means", "deviation", "classes", "noise", "sigma_min", "sigma_max"];
  let width = 0;
  let kept = { key: "", states: [] };

  function change(next) {
    for (const [name, value] of Object.entries(next)) model.set(name, value);
    model.save_changes();
  }
  const steps = () => model.get("steps");
  const controls = stepper(box, { now: () => Math.min(model.get("shown"), steps()), last: steps, change: (shown) => change({ shown }) });
  const solver = menu("Solver", model.get("solvers"), (name) => change({ solver: name }));
  solver.label.classList.add("wide");
  const many = slide("Steps S", { min: 1, max: model.get("noise").length - 1, step: 1 }, (value) => change({ steps: value, shown: value }));
  const guidance = slide("Guidance s", { min: 0, max: 6, step: 0.5 }, (scale) => change({ scale }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(controls.row, picture, make("div", { class: "fields" }, solver.label), many.row, guidance.row, verdict, detail);

  function show() {
    if (!width) return;
    const data = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    const [name, scale] = [model.get("solver"), model.get("scale")];
    const [count, shown] = [steps(), Math.min(model.get("shown"), steps())];
    const key = `${name} ${count} ${scale}`;
    if (kept.key !== key) kept = { key, states: sample(data, name, count, scale) };
    const sigmas = noiseLevels(data, count);
    const { spread, off } = spreadOf(data, kept.states[shown], sigmas[shown]);
    const words = `σ = ${number(Number(sigmas[shown].toPrecision(3)))}`;
    solver.input.value = name;
    many.set(count, String(count));
    guidance.set(scale, scale === 1 ? "1, none" : scale ? number(scale) : "0, no class");
    controls.show(words);
    picture.replaceChildren(drawing(data, sigmas, shown, `${data.classes.length} points after step ${shown} of ${count}, ${words}`));
    verdict.textContent = `Spread ${number(Number(spread.toFixed(2)))} of the exact one, means off by ${number(Number(off.toFixed(2)))} deviations`;
    const calls = (until) => evaluationsOf(name, until, scale, count);
    detail.textContent = `After step ${shown} of ${count}, ${words}: ${calls(shown)} of ${calls(count)} evaluations of the network a point. Dashed: one and two standard deviations of the exact distribution.`;
  }

  // The page shows x over √(1 + σ²), DDPM's x_t: noise and data then have about one size.
  function drawing(data, sigmas, shown, label) {
    const size = Math.min(width, 460);
    const unit = size / (2 * REACH);
    const shrink = (level) => unit / Math.sqrt(1 + level ** 2);
    const at = (point, level) => [size / 2 + point[0] * shrink(level), size / 2 - point[1] * shrink(level)];
    const svg = draw("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img", "aria-label": label });
    for (const mean of data.means) {
      const [cx, cy] = at(mean, sigmas[shown]);
      const deviation = Math.sqrt(data.deviation ** 2 + sigmas[shown] ** 2) * shrink(sigmas[shown]);
      svg.append(...[1, 2].map((times) => draw("circle", { class: "ring", cx, cy, r: times * deviation })));
    }
    data.classes.forEach((_, j) => {
      if (j % 4) return;
      const route = kept.states.slice(0, shown + 1).map((points, i) => at(points[j], sigmas[i]).map((one) => one.toFixed(1)).join(" "));
      svg.append(draw("path", { class: "path", d: `M${route.join("L")}` }));
    });
    kept.states[shown].forEach((point, j) => svg.append(mark(data.classes[j], at(point, sigmas[shown]), "point")));
    ["A", "B", "C"].forEach((letter, k) => {
      const y = size - 14 - 20 * (data.means.length - 1 - k);
      svg.append(mark(k, [12, y], "key"), draw("text", { x: 24, y: y + 4.5, "font-size": 13 }, `class ${letter}`));
    });
    return svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["solver", "steps", "scale", "shown"], show);
  return () => {
    stop();
    controls.stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-denoising", render);
export default { render };
