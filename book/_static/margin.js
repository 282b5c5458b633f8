// On wide screens, what a page's terms mean and its citations are stands in the margin, next to the line that names them
// first. The list of the page's sections folds to the current one once the reader has scrolled past it.
const WIDE = matchMedia("(min-width: 1200px)");
const LINKS = '.bd-article :is(a[href*="glossary.html#term-"], a[href*="references.html#"])[title]';
const GAP = 12; // pixels between notes
const MOST_SHIFT = 200; // how far below its line a note may stand

const content = document.querySelector(".bd-content");
const sidebar = document.querySelector(".bd-sidebar-secondary");

function note(link) {
  const words = document.createElement("b");
  words.textContent = link.textContent;
  const aside = document.createElement("aside");
  aside.className = "margin-note";
  aside.setAttribute("aria-hidden", "true"); // the link's own title says the same
  aside.append(words, ` ${link.title}`);
  return aside;
}

// One note for each term and work, at its first link that stands in the text itself.
function notesOf() {
  const first = new Map();
  for (const link of document.querySelectorAll(LINKS)) {
    if (!first.has(link.href) && !link.closest("details, table, figure, .lab-header, .cell_output")) first.set(link.href, link);
  }
  return [...first.values()].map((link) => ({ link, aside: note(link) }));
}

let notes = null;

function place() {
  if (!WIDE.matches) return;
  notes ??= notesOf();
  const origin = content.getBoundingClientRect().top;
  for (const { aside } of notes) content.append(aside);
  const tops = notes.map(({ link, aside }) => [link.getBoundingClientRect().top - origin, aside.offsetHeight]);
  let free = unfoldedHeight + GAP;
  notes.forEach(({ aside }, i) => {
    const [line, height] = tops[i];
    const top = Math.max(line, free);
    if (top - line > MOST_SHIFT) return aside.remove();
    aside.style.top = `${top}px`;
    free = top + height + GAP;
  });
}

const unfoldedHeight = sidebar?.offsetHeight ?? 0;

export function start() {
  if (!sidebar || !content) return;
  let planned = 0;
  const plan = () => {
    cancelAnimationFrame(planned);
    planned = requestAnimationFrame(place);
  };
  new ResizeObserver(plan).observe(document.querySelector(".bd-article"));
  document.addEventListener("toggle", plan, true);
  const fold = () => sidebar.classList.toggle("folded", WIDE.matches && scrollY > unfoldedHeight);
  addEventListener("scroll", fold, { passive: true });
  fold();
}
