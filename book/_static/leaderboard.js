// The leaderboard's tables sort by the column whose heading is clicked, and the other way round at the next click.
function compare(a, b) {
  if (a.dataset.value) return Number(a.dataset.value) - Number(b.dataset.value);
  return a.textContent.localeCompare(b.textContent);
}

function sort(table, heading) {
  const headings = [...heading.parentElement.cells];
  const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const one of headings) one.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const column = headings.indexOf(heading);
  const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a.cells[column], b.cells[column]));
  table.tBodies[0].append(...(order === "ascending" ? rows : rows.reverse()));
}

for (const table of document.querySelectorAll("table.leaderboard")) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: heading.textContent });
    button.addEventListener("click", () => sort(table, heading));
    heading.replaceChildren(button);
  }
}
