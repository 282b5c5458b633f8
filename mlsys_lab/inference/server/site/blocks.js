// The KV cache as a grid of blocks, each in the colour of its sequence; shared blocks show their reference count.

export const NUM_COLOURS = 8;

// Draws the blocks of a snapshot, and touches only those that have changed. Returns the number of blocks in use.
export function drawBlocks(grid, { num_blocks, running, evictable_blocks }) {
  while (grid.children.length > num_blocks) grid.lastChild.remove();
  while (grid.children.length < num_blocks) grid.append(Object.assign(document.createElement("i"), { className: "block free" }));
  const owners = new Map();
  for (const { seq_id, block_table } of running) {
    for (const block of block_table) owners.set(block, [...(owners.get(block) ?? []), seq_id]);
  }
  const evictable = new Set(evictable_blocks);
  [...grid.children].forEach((cell, block) => {
    const ids = owners.get(block) ?? [];
    const unused = evictable.has(block) ? "cached" : "free";
    set(cell, "className", `block ${ids.length ? `colour-${ids[0] % NUM_COLOURS}${ids.length > 1 ? " shared" : ""}` : unused}`);
    set(cell, "textContent", ids.length > 1 ? String(ids.length) : "");
    set(cell, "title", `block ${block}: ${ids.length ? ids.map((id) => `#${id}`).join(", ") : unused}`);
  });
  const shared = [...owners.values()].filter((ids) => ids.length > 1).length;
  grid.setAttribute("aria-label", `${owners.size} of ${num_blocks} blocks in use, ${shared} of them shared; ${evictable.size} cached`);
  return owners.size;
}

function set(node, property, value) {
  if (node[property] !== value) node[property] = value;
}
