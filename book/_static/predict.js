// Prediction boxes: the choices become buttons, and a click shows which is right and opens the answer.
// What a reader chose is kept in this browser, under the page's path and the number of the box. Without JavaScript the box is a list.
const KEY = "mlsys-predictions";
const SKIPPED = "-"; // in place of a letter

function stored() {
  try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; }
}

function store(id, letter) {
  try { localStorage.setItem(KEY, JSON.stringify({ ...stored(), [id]: letter })); } catch { /* private window: kept until the page is left */ }
}

function enhance(box, id) {
  const list = box.querySelector(":scope > ul");
  const answer = box.querySelector("details");
  const right = answer?.querySelector(".sd-card-body")?.textContent.trim()[0];
  if (!list || !right) return;
  const verdict = document.createElement("p");
  verdict.className = "predict-verdict";
  verdict.setAttribute("role", "status");
  const buttons = [...list.children].map((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.letter = item.textContent.trim()[0];
    button.append(...(item.firstElementChild?.tagName === "P" ? item.firstElementChild : item).childNodes);
    item.replaceChildren(button);
    return button;
  });
  const skip = document.createElement("button");
  skip.type = "button";
  skip.className = "predict-skip";
  skip.textContent = "Show it without a prediction";
  const reveal = () => {
    box.classList.add("predicted");
    skip.remove();
  };
  skip.addEventListener("click", () => {
    store(id, SKIPPED);
    reveal();
  });
  const show = (letter) => {
    reveal();
    for (const button of buttons) {
      button.setAttribute("aria-pressed", button.dataset.letter === letter);
      button.classList.toggle("right", button.dataset.letter === right);
      button.classList.toggle("wrong", button.dataset.letter === letter && letter !== right);
    }
    verdict.textContent = letter === right ? `${letter} is right.` : `You chose ${letter}; ${right} is right.`;
  };
  list.classList.add("choices");
  list.after(verdict);
  if (box.matches(":has(+ :is(.cell, figure, .chart), + p + :is(.cell, figure, .chart))")) verdict.after(skip);
  list.addEventListener("click", ({ target }) => {
    const letter = target.closest("button")?.dataset.letter;
    if (!letter) return;
    show(letter);
    if (!stored()[id]) store(id, letter); // the first choice counts
    tell();
    answer.open = true;
  });
  const before = stored()[id];
  if (before === SKIPPED) reveal();
  else if (before) show(before);
  return { id, right };
}

const boxes = [...document.querySelectorAll(".admonition.predict")]
  .map((box, index) => enhance(box, `${location.pathname}#${index}`)).filter(Boolean);

function tell() {
  const letters = stored();
  const answered = boxes.filter(({ id }) => letters[id] && letters[id] !== SKIPPED);
  const right = answered.filter((box) => letters[box.id] === box.right);
  if (!answered.length) return;
  const detail = { asked: boxes.length, answered: answered.length, right: right.length };
  dispatchEvent(new CustomEvent("mlsys-predicted", { detail }));
}
// The page's other scripts listen by then.
queueMicrotask(tell);
