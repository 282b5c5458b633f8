// The cache as a grid: who holds each block, in the colour of the text; shared ones with the number of their holders.

export const TONES = 8;

// Draws the blocks of a view; only those that have changed are touched. Returns what a sentence can say of them.
export function drawBlocks(grid, { blocks, running, kept }) {
  while (grid.children.length > blocks) grid.lastChild.remove();
  while (grid.children.length < blocks) grid.append(Object.assign(document.createElement("i"), { className: "block free" }));
  const holders = new Map();
  for (const { name, blocks: held } of running) {
    for (const block of held) holders.set(block, [...(holders.get(block) ?? []), name]);
  }
  const idle = new Set(kept);
  [...grid.children].forEach((cell, block) => {
    const names = holders.get(block) ?? [];
    const kind = names.length ? `tone-${names[0] % TONES}${names.length > 1 ? " shared" : ""}` : idle.has(block) ? "kept" : "free";
    set(cell, "className", `block ${kind}`);
    set(cell, "textContent", names.length > 1 ? String(names.length) : "");
    set(cell, "title", `block ${block}: ${names.length ? names.map((name) => `#${name}`).join(", ") : idle.has(block) ? "kept" : "free"}`);
  });
  const shared = [...holders.values()].filter((names) => names.length > 1).length;
  grid.setAttribute("aria-label", `${holders.size} of ${blocks} blocks held, ${shared} of them shared; ${kept.length} kept`);
  return holders.size;
}

function set(node, property, value) {
  if (node[property] !== value) node[property] = value;
}
