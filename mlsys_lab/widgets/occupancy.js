// Resident blocks and warps of a multiprocessor, and the resource that limits them.

const OCCUPANCY_STYLE = `
.picture { touch-action: pan-y; cursor: ew-resize; margin-top: 6px; }
.top label { display: flex; gap: 8px; align-items: center; }
.knob { display: grid; grid-template-columns: 12.5em minmax(0, 1fr) 6.6em; gap: 4px 12px; align-items: center; margin-top: 6px; }
.knob input[type="range"] { min-height: 30px; width: 100%; margin: 0; }
.knob input[type="number"] { width: 100%; text-align: right; }
svg .steps { stroke: var(--value); stroke-width: 2.5; stroke-linejoin: round; }
svg .at { stroke: var(--ink); stroke-width: 1.4; }
svg .dot { fill: var(--value); stroke: var(--surface); stroke-width: 2; }
.slots { display: grid; grid-template-columns: repeat(32, minmax(0, 1fr)); gap: 3px; margin: 10px 0 4px; }
.slots i { height: 15px; border-radius: 3px; border: 1px solid var(--line); background: var(--raised); box-sizing: border-box; }
.slots .even { background: var(--value); border-color: var(--value); }
.slots .odd { background: var(--gradient); border-color: var(--gradient); }
@media (max-width: 560px) {
  .knob { grid-template-columns: minmax(0, 1fr) 6.6em; }
  .knob input[type="range"] { grid-column: 1 / -1; grid-row: 2; }
  .slots { grid-template-columns: repeat(16, minmax(0, 1fr)); }
}
.limits { display: grid; grid-template-columns: auto minmax(0, 1fr) auto; gap: 4px 12px; align-items: center; margin: 10px 0 0; }
.limits dt, .limits dd { margin: 0; }
.limits b { display: block; height: 10px; border-radius: 3px; background: var(--muted); opacity: 0.5; min-width: 2px; }
.limits .binds { font-weight: 600; } .limits b.binds { background: var(--gradient); opacity: 1; }
.legend { color: var(--muted); font-size: 13px; margin: 0; }
`;

const WARP = 32;
const MOST = { threads: 1024, registers: 255 };
const REGISTER_UNIT = 256;
const SCHEDULERS = 4;

// As in `mlsys_lab.kernels.trace.occupancy`, with the same names and error messages.
function occupancy(device, { threads, registers, shared_bytes }) {
  const { warps: atMostWarps, blocks: atMostBlocks, compute_capability: capability, register_bytes, shared_bytes: allShared } = device;
  if (!(atMostWarps && atMostBlocks && capability && register_bytes && allShared)) {
    throwInputError(`${device.name} has no streaming multiprocessors`, { expected: "an NVIDIA GPU" });
  }
  const said = (amount) => (Number.isNaN(amount) ? "nothing" : amount);
  for (const [what, amount] of Object.entries({ threads, registers })) {
    if (!(Number.isInteger(amount) && amount >= 1 && amount <= MOST[what])) {
      throwInputError(`${what} out of range`, { got: said(amount), expected: `1 to ${MOST[what]}` });
    }
  }
  if (!(shared_bytes >= 0)) throwInputError("shared_bytes must not be negative", { got: said(shared_bytes) });
  const up = (amount, unit) => Math.ceil(amount / unit) * unit;
  const warps = Math.ceil(threads / WARP);
  const perWarp = up(registers * WARP, REGISTER_UNIT);
  const [unit, reserved] = capability[0] >= 8 ? [128, 1024] : [256, 0];
  const shared = up(shared_bytes + reserved, unit);
  const warpsByRegisters = SCHEDULERS * Math.floor(register_bytes / 4 / SCHEDULERS / perWarp);
  const by = {
    blocks: atMostBlocks,
    warps: Math.floor(atMostWarps / warps),
    registers: Math.floor(warpsByRegisters / warps),
    "shared memory": shared ? Math.floor(allShared / shared) : atMostBlocks,
  };
  const blocks = Math.min(...Object.values(by));
  return {
    blocks, warps: blocks * warps, occupancy: (blocks * warps) / atMostWarps, by, registers_per_warp: perWarp, shared_bytes_per_block: shared,
    limits: Object.keys(by).filter((limit) => by[limit] === blocks),
  };
}

function render({ model, el }) {
  const devices = model.get("devices");
  const { box, stop } = stage(el, model.get("title") ?? "Occupancy", AXES_STYLE + OCCUPANCY_STYLE);
  let [width, area] = [0, null];
  const device = () => devices.find((one) => one.name === model.get("device")) ?? devices[0];
  const kernel = () => Object.fromEntries(["threads", "registers", "shared_bytes"].map((name) => [name, model.get(name)]));
  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const grouped = (x) => x.toLocaleString("en-US");
  const counted = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;
  const percent = (x) => `${number(Number((100 * x).toPrecision(3)))}\u00a0%`;

  // A slider, and a field for any number.
  function knob(name, label, { min, max, step }) {
    const range = make("input", { type: "range", "aria-label": label, min, max, step, input: () => put(name, Number(range.value)) });
    const field = make("input", {
      type: "number", "aria-label": `${label}, exactly`, min, step: 1, change: () => put(name, field.value === "" ? NaN : Number(field.value)),
    });
    return { name, range, field, row: make("div", { class: "knob" }, make("span", {}, label), range, field) };
  }
  const most = Math.max(...devices.map((one) => one.shared_bytes ?? 0));
  const knobs = [
    knob("threads", "threads of a block", { min: WARP, max: MOST.threads, step: WARP }),
    knob("registers", "registers a thread", { min: 8, max: 248, step: 8 }),
    knob("shared_bytes", "shared bytes a block", { min: 0, max: most, step: 1024 }),
  ];
  const choice = menu("Device", devices.map(({ name }) => [name, name]), (name) => put("device", name));
  const error = make("p", { class: "error", role: "alert" });
  const verdict = make("p", { class: "verdict", "aria-live": "polite" });
  const detail = make("p", { class: "detail" });
  const slots = make("div", { class: "slots", role: "img" });
  const legend = make("p", { class: "legend" }, "Each square is a warp's place; colours alternate from block to block.");
  const limits = make("dl", { class: "limits" });
  const picture = make("div", { class: "picture" });
  box.append(make("div", { class: "row top" }, choice.label), ...knobs.map((one) => one.row), error, verdict, detail, slots, legend, limits, picture);

  const drag = (event) => {
    if (!area || !(event.buttons & 1)) return;
    const threads = area.xValue(event.clientX - area.svg.getBoundingClientRect().left);
    put("threads", Math.min(MOST.threads, Math.max(WARP, Math.round(threads / WARP) * WARP)));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    drag(event);
  });
  picture.addEventListener("pointermove", drag);

  function show() {
    if (!width) return;
    const [now, sizes] = [device(), kernel()];
    choice.input.value = now.name;
    for (const { name, range, field } of knobs) {
      const value = sizes[name];
      range.value = field.value = Number.isFinite(value) ? value : "";
      range.setAttribute("aria-valuetext", Number.isFinite(value) ? grouped(value) : "nothing");
    }
    let held;
    try {
      held = occupancy(now, sizes);
      error.textContent = "";
    } catch (inputError) {
      error.textContent = inputError.message;
    }
    for (const node of [verdict, detail, slots, legend, limits, picture]) node.hidden = !held;
    if (held) tell(now, sizes, held);
  }

  function tell(now, sizes, held) {
    verdict.textContent = held.blocks
      ? `${counted(held.blocks, "block")}, ${held.warps} of ${now.warps} warps: occupancy ${percent(held.occupancy)}`
      : "Not even one block fits: the launch fails";
    const idle = Math.ceil(sizes.threads / WARP) * WARP - sizes.threads;
    const beyond = held.shared_bytes_per_block - sizes.shared_bytes;
    detail.textContent = `Limited by ${held.limits.join(" and ")}. A warp is given ${grouped(held.registers_per_warp)} registers, a block ${counted(held.shared_bytes_per_block, "byte")} of shared memory`
      + (beyond ? `, ${grouped(beyond)} of them beyond its arrays.` : ".")
      + (idle ? ` Its last warp has ${counted(idle, "idle lane")}.` : "");
    const each = Math.ceil(sizes.threads / WARP);
    slots.setAttribute("aria-label", `${held.warps} of ${now.warps} warps' places taken, by ${counted(held.blocks, "block")}`);
    slots.replaceChildren(...Array.from({ length: now.warps }, (_, warp) =>
      make("i", { class: warp >= held.warps ? "free" : Math.floor(warp / each) % 2 ? "odd" : "even" })));
    const longest = Math.max(...Object.values(held.by));
    limits.replaceChildren(...Object.entries(held.by).flatMap(([limit, blocks]) => {
      const binds = held.limits.includes(limit) ? "binds" : "";
      return [
        make("dt", { class: binds }, ["blocks", "warps"].includes(limit) ? `most ${limit}` : limit),
        make("dd", {}, make("b", { class: binds, style: `width: ${(100 * blocks) / longest}%` })),
        make("dd", { class: binds }, counted(blocks, "block")),
      ];
    }));
    picture.replaceChildren(drawing(now, sizes, held));
  }

  function drawing(now, sizes, held) {
    const height = Math.round(Math.max(230, Math.min(300, width * 0.4)));
    const ticks = Array.from({ length: 8 }, (_, i) => 128 * (i + 1));
    const across = { title: "threads of a block", word: String, ticks, at: (v) => v / MOST.threads, value: (share) => share * MOST.threads };
    const up = linearAxis({ low: 0, high: 1, title: "occupancy", word: percent, most: 5 });
    area = plot({
      width, height, x: across, y: up, edge: { right: 22, top: 18 },
      label: `Occupancy of ${now.name} against the threads of a block: ${percent(held.occupancy)} at ${sizes.threads}`,
    });
    // All blocks of as many warps are held alike, so the curve is made of steps one warp wide.
    const path = Array.from({ length: MOST.threads / WARP }, (_, i) => {
      const y = area.y(occupancy(now, { ...sizes, threads: WARP * (i + 1) }).occupancy).toFixed(2);
      return `${i ? "L" : "M"}${area.x(WARP * i).toFixed(2)} ${y}H${area.x(WARP * (i + 1)).toFixed(2)}`;
    }).join("");
    const [x, y] = [area.x(sizes.threads), area.y(held.occupancy)];
    area.inside.append(draw("line", { class: "at", x1: x, x2: x, y1: area.y1, y2: area.y0 }));
    area.marks.append(draw("path", { class: "steps", fill: "none", d: path }), draw("circle", { class: "dot", cx: x, cy: y, r: 7 }));
    return area.svg;
  }

  const stopWidth = watchWidth(picture, (next) => {
    width = next;
    show();
  });
  const stopTraits = watchTraits(model, ["device", "threads", "registers", "shared_bytes"], show);
  return () => {
    stop();
    stopWidth();
    stopTraits();
  };
}

register("mlsys-occupancy", render);
export default { render };
