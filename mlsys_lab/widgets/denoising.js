// Points on their way from noise to three classes, by a denoiser that is known exactly: solver, steps and guidance.

const DENOISING_STYLE = `
svg .ring { fill: none; stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 4; }
svg .path { fill: none; stroke: var(--muted); stroke-width: 1; opacity: 0.7; }
svg .class0 { fill: var(--value); } svg .class1 { fill: var(--gradient); } svg .class2 { fill: var(--ink); }
svg .point { stroke: var(--surface); stroke-width: 1; }
`;

const REACH = 2.9;
const RHO = 7;

// Levels that a run of so many steps walks down, the last of them 0.
function levelsOf({ sigma_min: low, sigma_max: high }, steps) {
  const [first, last] = [high ** (1 / RHO), low ** (1 / RHO)];
  const levels = Array.from({ length: steps }, (_, i) => (first + (steps > 1 ? i / (steps - 1) : 0) * (last - first)) ** RHO);
  return [...levels, 0];
}

// The clean point that is expected where a point of a class is seen at a level, guided by a scale.
function denoise({ means, deviation }, point, sigma, label, scale) {
  const variance = deviation ** 2 + sigma ** 2;
  const kept = deviation ** 2 / variance;
  const toward = (mean) => point.map((one, axis) => kept * one + (1 - kept) * mean[axis]);
  const inClass = toward(means[label]);
  if (scale === 1) return inClass;
  const fits = means.map((mean) => -mean.reduce((sum, one, axis) => sum + (point[axis] - one) ** 2, 0) / (2 * variance));
  const most = Math.max(...fits);
  const shares = fits.map((fit) => Math.exp(fit - most));
  const all = shares.reduce((a, b) => a + b);
  const anyClass = toward([0, 1].map((axis) => means.reduce((sum, mean, k) => sum + (shares[k] / all) * mean[axis], 0)));
  return anyClass.map((one, axis) => one + scale * (inClass[axis] - one));
}

// A step of each solver from a level to the next: `clean(x, sigma)` denoises, `last` is what the step before has seen.
const SOLVERS = {
  ddim(x, sigma, next, { clean }) {
    const seen = clean(x, sigma);
    return { x: x.map((one, axis) => seen[axis] + (next / sigma) * (one - seen[axis])) };
  },
  heun(x, sigma, next, { clean }) {
    const slope = (at, level) => clean(at, level).map((one, axis) => (at[axis] - one) / level);
    const first = slope(x, sigma);
    const ahead = x.map((one, axis) => one + (next - sigma) * first[axis]);
    if (!next) return { x: ahead };
    const second = slope(ahead, next);
    return { x: x.map((one, axis) => one + ((next - sigma) * (first[axis] + second[axis])) / 2) };
  },
  "dpm++"(x, sigma, next, { clean, last }) {
    const seen = clean(x, sigma);
    const ratio = last && next ? Math.log(last.sigma / sigma) / Math.log(sigma / next) : Infinity;
    const expected = seen.map((one, axis) => one + (last ? (one - last.seen[axis]) / (2 * ratio) : 0));
    return { x: x.map((one, axis) => (next / sigma) * one + (1 - next / sigma) * expected[axis]), last: { seen, sigma } };
  },
  ddpm(x, sigma, next, { clean, noise }) {
    const seen = clean(x, sigma);
    const variance = next ** 2 * (1 - (next / sigma) ** 2);
    const kept = Math.sqrt(Math.max(0, next ** 2 - variance)) / sigma;
    return { x: x.map((one, axis) => seen[axis] + kept * (one - seen[axis]) + Math.sqrt(variance) * noise[axis]) };
  },
};

// Where every point is before the first step and after each: [step][point] = [x, y].
function walk(data, solver, steps, scale) {
  const levels = levelsOf(data, steps);
  const seen = [data.noise[0].map((point) => point.map((one) => one * levels[0]))];
  const lasts = data.classes.map(() => undefined);
  for (let i = 0; i < steps; i++) {
    seen.push(seen[i].map((point, j) => {
      const clean = (x, sigma) => denoise(data, x, sigma, data.classes[j], scale);
      const after = SOLVERS[solver](point, levels[i], levels[i + 1], { clean, last: lasts[j], noise: data.noise[i + 1][j] });
      lasts[j] = after.last;
      return after.x;
    }));
  }
  return seen;
}

// Deviation of the points from the centre of their class, and of that centre from where it belongs; 1 and 0 are right.
function spreadOf({ means, classes, deviation }, points, sigma) {
  const wanted = Math.sqrt(deviation ** 2 + sigma ** 2);
  let [squares, off] = [0, 0];
  means.forEach((mean, k) => {
    const own = points.filter((_, j) => classes[j] === k);
    const centre = [0, 1].map((axis) => own.reduce((sum, point) => sum + point[axis], 0) / own.length);
    squares += own.reduce((sum, point) => sum + Math.hypot(point[0] - centre[0], point[1] - centre[1]) ** 2, 0) / (2 * own.length);
    off += Math.hypot(centre[0] - mean[0], centre[1] - mean[1]);
  });
  return { spread: Math.sqrt(squares / means.length) / wanted, off: off / means.length / wanted };
}

function evaluationsOf(solver, steps, scale, whole) {
  const calls = solver === "heun" ? 2 * steps - (steps === whole ? 1 : 0) : steps;
  return Math.max(0, calls) * (scale === 1 ? 1 : 2);
}

// A circle, a square or a triangle: classes are told apart without colours too.
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
  const walker = stepper(box, { now: () => Math.min(model.get("shown"), steps()), last: steps, change: (shown) => change({ shown }) });
  const solver = menu("Solver", model.get("solvers"), (name) => change({ solver: name }));
  solver.label.classList.add("wide");
  const many = slide("Steps S", { min: 1, max: model.get("noise").length - 1, step: 1 }, (value) => change({ steps: value, shown: value }));
  const guidance = slide("Guidance s", { min: 0, max: 6, step: 0.5 }, (scale) => change({ scale }));
  const picture = make("div");
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  box.append(walker.row, picture, make("div", { class: "fields" }, solver.label), many.row, guidance.row, verdict, detail);

  function show() {
    if (!width) return;
    const data = Object.fromEntries(names.map((name) => [name, model.get(name)]));
    const [name, scale] = [model.get("solver"), model.get("scale")];
    const [count, shown] = [steps(), Math.min(model.get("shown"), steps())];
    const key = `${name} ${count} ${scale}`;
    if (kept.key !== key) kept = { key, states: walk(data, name, count, scale) };
    const levels = levelsOf(data, count);
    const { spread, off } = spreadOf(data, kept.states[shown], levels[shown]);
    const words = `σ = ${number(Number(levels[shown].toPrecision(3)))}`;
    solver.input.value = name;
    many.set(count, String(count));
    guidance.set(scale, scale === 1 ? "1, none" : scale ? number(scale) : "0, no class");
    walker.show(words);
    picture.replaceChildren(drawing(data, levels, shown, `${data.classes.length} points after step ${shown} of ${count}, ${words}`));
    verdict.textContent = `Spread ${number(Number(spread.toFixed(2)))} of what it ought to be, centres off by ${number(Number(off.toFixed(2)))} deviations`;
    const calls = (until) => evaluationsOf(name, until, scale, count);
    detail.textContent = `After step ${shown} of ${count}, ${words}: ${calls(shown)} of ${calls(count)} evaluations of the network a point. Dashed: where the points belong, one and two deviations.`;
  }

  // The page shows x over √(1 + σ²), DDPM's x_t: noise and data then have about one size.
  function drawing(data, levels, shown, label) {
    const size = Math.min(width, 460);
    const unit = size / (2 * REACH);
    const shrink = (level) => unit / Math.sqrt(1 + level ** 2);
    const at = (point, level) => [size / 2 + point[0] * shrink(level), size / 2 - point[1] * shrink(level)];
    const svg = draw("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "img", "aria-label": label });
    for (const mean of data.means) {
      const [cx, cy] = at(mean, levels[shown]);
      const deviation = Math.sqrt(data.deviation ** 2 + levels[shown] ** 2) * shrink(levels[shown]);
      svg.append(...[1, 2].map((times) => draw("circle", { class: "ring", cx, cy, r: times * deviation })));
    }
    data.classes.forEach((_, j) => {
      if (j % 4) return;
      const route = kept.states.slice(0, shown + 1).map((points, i) => at(points[j], levels[i]).map((one) => one.toFixed(1)).join(" "));
      svg.append(draw("path", { class: "path", d: `M${route.join("L")}` }));
    });
    kept.states[shown].forEach((point, j) => svg.append(mark(data.classes[j], at(point, levels[shown]), "point")));
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
    walker.stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-denoising", render);
export default { render };
