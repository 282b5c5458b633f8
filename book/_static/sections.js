// The list of a page's sections marks the one that is being read. The theme's own script looks for a header that it
// does not have itself, and gives up.
const links = [...document.querySelectorAll("#pst-page-toc-nav a[href^='#']")];
const sections = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
const BELOW_TOP = 120; // pixels: the header, and some

let planned = 0;
function mark() {
  planned = 0;
  const current = sections.findLastIndex((section) => section?.getBoundingClientRect().top < BELOW_TOP);
  links.forEach((link, i) => {
    link.classList.toggle("active", i === current);
    if (i === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  });
}

if (links.length) {
  addEventListener("scroll", () => (planned ||= requestAnimationFrame(mark)), { passive: true });
  mark();
}
