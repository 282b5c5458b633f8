// A box to tick before each milestone, and how many are ticked. Kept in this browser only; the path is complete without it.
const KEY = "mlsys-lab:milestones";

function stored() {
  try {
    const done = JSON.parse(localStorage.getItem(KEY));
    return new Set(Array.isArray(done) ? done : []);
  } catch {
    return new Set();
  }
}

const path = document.querySelector(".milestones");
const milestones = [...path.querySelectorAll("[data-milestone]")];
const bar = Object.assign(document.createElement("progress"), { max: milestones.length });
bar.setAttribute("aria-label", "Milestones reproduced");
const words = document.createElement("span");
const head = document.createElement("p");
head.className = "milestones-progress";
head.append(bar, words);
path.before(head);

const boxes = milestones.map((milestone) => {
  const { milestone: name } = milestone.dataset;
  const box = Object.assign(document.createElement("input"), { type: "checkbox" });
  const label = document.createElement("label");
  label.className = "milestone-check";
  label.append(box, " reproduced");
  box.setAttribute("aria-label", `reproduced: ${milestone.querySelector("h2").textContent}`);
  box.addEventListener("change", () => {
    const done = stored(); // another tab may have written since
    if (box.checked) done.add(name); else done.delete(name);
    try { localStorage.setItem(KEY, JSON.stringify([...done])); } catch { /* private window: nothing is kept */ }
    count();
  });
  milestone.querySelector(".milestone-year").append(label);
  return box;
});

function count() {
  milestones.forEach((milestone, i) => milestone.classList.toggle("milestone-done", boxes[i].checked));
  bar.value = boxes.filter((box) => box.checked).length;
  words.textContent = `${bar.value} of ${milestones.length} reproduced`;
}

function show() {
  const done = stored();
  milestones.forEach((milestone, i) => { boxes[i].checked = done.has(milestone.dataset.milestone); });
  count();
}

addEventListener("storage", ({ key }) => { if (key === KEY || key === null) show(); });
show();
