// Where a reader is: the last section seen of a chapter, the chapters read to their end, and how many predictions were
// right. Kept in this browser only. The sidebar and the syllabus mark chapters with this, and the front page leads back to
// where the reader stopped.
const KEY = "mlsys-lab:chapters";
const ROOT = new URL("../", import.meta.url);

function stored() {
  try {
    const { last, done, predictions } = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return { last, done: Array.isArray(done) ? done : [], predictions: predictions ?? {} };
  } catch {
    return { done: [], predictions: {} };
  }
}

function store(change) {
  try { localStorage.setItem(KEY, JSON.stringify({ ...stored(), ...change })); } catch { /* private window: nothing is kept */ }
}

function tick() {
  const { done, predictions } = stored();
  for (const link of document.querySelectorAll(":is(.bd-sidebar-primary, .syllabus) a[href*='chapters/'], .bd-sidebar-primary .current > a")) {
    const page = new URL(link.href).pathname.split("/").at(-1);
    const [right, asked] = predictions[page] ?? [];
    const isDone = done.includes(page);
    link.querySelector(".chapter-done")?.remove();
    if (!isDone && !asked) continue;
    const mark = document.createElement("span");
    mark.className = "chapter-done";
    mark.textContent = `${isDone ? " ✓" : ""}${asked ? ` ${right}/${asked}` : ""}`;
    mark.title = [isDone ? "read to the end" : "", asked ? `${right} of ${asked} predictions right` : ""].filter(Boolean).join("; ");
    link.append(mark);
  }
}

// Called when predict.js reports a prediction of this page.
function count(page, { right, asked, answered }) {
  store({ predictions: { ...stored().predictions, [page]: [right, asked] } });
  const foot = document.querySelector(".chapter-foot");
  const shown = foot?.querySelector(".predictions-made") ?? document.createElement("span");
  shown.className = "predictions-made";
  shown.textContent = `Predictions: ${answered} of ${asked} made, ${right} right`;
  foot?.prepend(shown);
  tick();
}

function follow(page) {
  const title = document.querySelector("h1").firstChild.textContent;
  const headings = [...document.querySelectorAll(".bd-article section[id] > :is(h2, h3)")];
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) store({ last: { page, anchor: target.parentElement.id, title, section: target.firstChild.textContent } });
    }
  });
  for (const heading of headings) seen.observe(heading);
  const foot = document.querySelector(".chapter-foot");
  const ended = new IntersectionObserver(([{ isIntersecting }]) => {
    if (!isIntersecting) return;
    store({ done: [...new Set([...stored().done, page])] });
    const next = [...foot.querySelectorAll("a")].find((link) => link.href.includes("/chapters/"));
    if (next) store({ last: { page: next.href.split("/").at(-1), anchor: "", title: next.textContent, section: "" } });
    tick();
  });
  if (foot) ended.observe(foot);
}

function lead(actions) {
  const { last } = stored();
  if (!last) return;
  const link = document.createElement("a");
  link.className = "front-button front-primary";
  link.href = new URL(`chapters/${last.page}#${last.anchor}`, ROOT);
  link.textContent = `Continue: ${[last.title, last.section].filter(Boolean).join(" · ")}`;
  actions.querySelector(".front-primary")?.classList.remove("front-primary");
  actions.prepend(link);
}

const [folder, page] = location.pathname.split("/").slice(-2);
if (folder === "chapters") {
  follow(page);
  addEventListener("mlsys-predicted", ({ detail }) => count(page, detail));
}
const actions = document.querySelector(".front-actions");
if (actions) lead(actions);
tick();

// The theme scrolls the sidebar too, but before its letters have their final height.
document.fonts.ready.then(() => {
  const sidebar = document.querySelector(".bd-sidebar-primary");
  const current = sidebar?.querySelector(".current.active > a")?.getBoundingClientRect();
  if (current && (current.top < 0 || current.bottom > sidebar.clientHeight)) sidebar.scrollTop += current.top - sidebar.clientHeight / 3;
});
