// Where a reader is: the last section seen of a chapter, and the chapters read to their end. Kept in this browser only.
// The sidebar ticks finished chapters, and the front page leads back to where the reader stopped.
const KEY = "mlsys-lab:chapters";
const ROOT = new URL("../", import.meta.url);

function stored() {
  try {
    const { last, done } = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return { last, done: Array.isArray(done) ? done : [] };
  } catch {
    return { done: [] };
  }
}

function store(change) {
  try { localStorage.setItem(KEY, JSON.stringify({ ...stored(), ...change })); } catch { /* private window: nothing is kept */ }
}

function tick() {
  const done = new Set(stored().done);
  for (const link of document.querySelectorAll(".bd-sidebar-primary a.reference.internal")) {
    const page = new URL(link.href).pathname.split("/").at(-1);
    const isDone = link.href.includes("/chapters/") && done.has(page);
    if (isDone && !link.querySelector(".chapter-done")) {
      const mark = document.createElement("span");
      mark.className = "chapter-done";
      mark.append(" ✓");
      mark.title = "read to the end";
      link.append(mark);
    }
  }
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
  link.textContent = `Continue: ${last.title} · ${last.section}`;
  actions.prepend(link);
}

const [folder, page] = location.pathname.split("/").slice(-2);
if (folder === "chapters") follow(page);
const actions = document.querySelector(".front-actions");
if (actions) lead(actions);
tick();

// The theme scrolls the sidebar too, but before its letters have their final height.
document.fonts.ready.then(() => {
  const sidebar = document.querySelector(".bd-sidebar-primary");
  const current = sidebar?.querySelector(".current.active > a")?.getBoundingClientRect();
  if (current && (current.top < 0 || current.bottom > sidebar.clientHeight)) sidebar.scrollTop += current.top - sidebar.clientHeight / 3;
});
