// Buttons, a slider and keys that step through a figure, or play it.

const STEPPER_STYLE = `
.tools { margin-bottom: 10px; }
.tools input[type="range"] { flex: 1 1 120px; }
@media (max-width: 560px) {
  .tools input[type="range"] { flex-basis: 100%; order: 1; }
}
@media print { .tools { display: none; } }
`;

const ICONS = {
  first: "M1 2h2v12H1zM9 2v12L3.5 8zM15 2v12L9.5 8z",
  previous: "M2 2h2v12H2zM14 2v12L5 8z",
  next: "M12 2h2v12h-2zM2 2v12l9-6z",
  play: "M4 2v12l9-6z",
  pause: "M4 2h3v12H4zM10 2h3v12h-3z",
};

function icon(name) {
  return draw("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, draw("path", { d: ICONS[name] }));
}

// now() and last(): the step that is shown, and the last one; change(step) shows another. Keys work in all of `box`.
// Returns the row of controls, `go(step)`, `show(words)` to call when the step has changed, and `stop`.
function stepper(box, { now, last, change }) {
  let timer = null;
  const button = (name, label, act) =>
    make("button", { type: "button", "aria-label": label, title: label, click: act }, icon(name));
  const buttons = {
    first: button("first", "First step", () => go(0)),
    previous: button("previous", "Previous step", () => go(now() - 1)),
    play: button("play", "Play", () => play(!timer)),
    next: button("next", "Next step", () => go(now() + 1)),
  };
  const scrub = make("input", { type: "range", min: 0, max: last(), "aria-label": "Step", input: () => go(Number(scrub.value)) });
  const speed = make("select", { "aria-label": "Speed", change: () => timer && play(true) });
  for (const times of [0.5, 1, 2, 4]) speed.append(make("option", { value: times, selected: times === 1 }, `${times}×`));

  function go(next) {
    const wanted = Math.max(0, Math.min(last(), next));
    if (wanted === last()) play(false);
    if (wanted !== now()) change(wanted);
  }

  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => go(now() + 1), 1400 / Number(speed.value)) : null;
    if (on && now() === last()) go(0);
    buttons.play.replaceChildren(icon(on ? "pause" : "play"));
    buttons.play.setAttribute("aria-label", on ? "Pause" : "Play");
    buttons.play.title = on ? "Pause" : "Play";
  }

  box.tabIndex = 0;
  box.addEventListener("keydown", (event) => {
    const target = event.composedPath()[0];
    if (target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowRight: () => go(now() + 1), ArrowLeft: () => go(now() - 1), Home: () => go(0), End: () => go(last()),
      " ": target === box ? () => play(!timer) : null,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  function show(words) {
    scrub.max = last();
    scrub.value = now();
    scrub.setAttribute("aria-valuetext", `step ${now()} of ${last()}: ${words}`);
    buttons.first.disabled = buttons.previous.disabled = now() === 0;
    buttons.next.disabled = now() === last();
  }

  const row = make("div", { class: "row tools" }, buttons.first, buttons.previous, buttons.play, buttons.next, scrub, speed);
  return { row, go, show, stop: () => play(false) };
}

