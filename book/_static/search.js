// Search: sections of chapters and labs, terms of the glossary and readings, all in search-index.json (book/_ext/search_index.py).
// A word of a query fits words that begin with its stem, however they are spelled: "quantised" finds "quantization".
// Hits have all words of the query; if there are none, those that have some.

const ROOT = new URL("../", import.meta.url);
const EXCERPT = 180;
const COMMON = new Set("a an and are as at be by can do does for from how in is it of on or that the to what when which why with".split(" "));
const SPELLINGS = [
  [/is(e|ed|es|er|ers|ing|able|ation|ations)$/, "iz$1"],
  [/lys(e|ed|es|er|ing)$/, "lyz$1"],
  [/(behavi|col|fav|flav|hon|lab|neighb)our/, "$1or"],
  [/(cent|fib|lit|met)re(s?)$/, "$1er$2"],
  [/ll(ed|er|ers|ing)$/, "l$1"],
  [/(def|lic|off)ence/, "$1ense"],
  [/ogue(s?)$/, "og$1"],
  [/^programme/, "program"],
  [/^grey/, "gray"],
  [/^artefact/, "artifact"],
];
const ENDING = /(izations?|ations?|[ae]nces?|ing|ers?|ed|es|s|e)$/;
/** Names of one thing: a query with the first also finds the second, the word of this book. */
const SYNONYMS = [
  ["gradient checkpointing", "activation checkpointing"],
  ["rematerialization", "activation checkpointing"],
  ["recomputation", "checkpointing"],
  ["vjp", "vector jacobian products"],
  ["flash attention", "flashattention"],
  ["paged attention", "paged kv cache"],
  ["pagedattention", "paged kv cache"],
  ["fsdp", "zero shard"],
  ["inflight batching", "continuous batching"],
  ["gqa", "gqa kv heads"],
  ["moe", "mixture of experts"],
  ["cfg", "classifier free guidance"],
  ["autodiff", "automatic differentiation"],
  ["backprop", "reverse mode"],
  ["backpropagation", "reverse mode"],
  ["swizzle", "swizzling"],
  ["disaggregated serving", "disaggregation"],
];
/** Sections that every chapter has: they mention what others teach. */
const GENERAL = new Set(["worked problems", "in practice", "the answer", "closing the question", "read next", "readings"]);
const GROUPS = [
  ["Chapters", (hit) => hit.kind === "section" && hit.page.startsWith("chapters/")],
  ["Glossary", (hit) => hit.kind === "term"],
  ["Labs", (hit) => hit.page.startsWith("labs/")],
  ["Readings", (hit) => hit.kind === "reading"],
  ["Other pages", () => true],
];

const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
const spell = (word) => SPELLINGS.reduce((spelled, [from, to]) => spelled.replace(from, to), word);
const split = (text) => plain(text).match(/[\p{L}\p{N}]+/gu) ?? [];

/** What words of one family have in common: at least four letters, or the whole word. */
function stem(word) {
  const spelled = spell(word);
  const short = spelled.replace(ENDING, (ending) => (ending.startsWith("iz") ? "iz" : ""));
  return short.length >= 4 ? short : spelled;
}

/** " word word word " in one spelling, so that " word" finds where a word begins. */
const fold = (text) => ` ${split(text).map(spell).join(" ")} `;

function parse(query) {
  const words = split(query);
  const telling = words.filter((word) => !COMMON.has(word) && word.length > 1);
  return [...new Set((telling.length ? telling : words).map(stem))];
}

let index;

/** The index, fetched once. */
export function loadIndex() {
  index ??= fetch(new URL("search-index.json", ROOT)).then((response) => response.json()).then(({ pages, hits }) => ({
    pages,
    hits: hits.map(([page, anchor, title, text, kind]) => (
      { page, anchor, title, text, kind, foldedTitle: fold(title), foldedText: fold(text), length: text.length }
    )),
  }));
  return index;
}

/** How well a hit fits (BM25 with the title as a field of its own); `all` says whether it has every stem. */
function rate(hit, stems, phrase, rarity, meanLength) {
  let score = 0;
  let all = true;
  for (const one of stems) {
    const inTitle = hit.foldedTitle.includes(` ${one}`);
    const times = hit.foldedText.split(` ${one}`).length - 1;
    if (!inTitle && !times) all = false;
    const saturated = times / (times + 1.2 * (0.5 + 0.5 * hit.length / meanLength));
    score += rarity.get(one) * ((inTitle ? 2.5 : 0) + 2.2 * saturated);
  }
  if (score === 0) return { score, all: false };
  if (hit.foldedTitle.includes(phrase)) score += 3;
  if (stems.length > 1 && hit.foldedText.includes(phrase)) score += 2;
  const is = (title) => parse(title).join(" ") === stems.join(" ");
  if (hit.title.split(/[:,]/).some(is)) score += hit.anchor ? 6 : 15;
  if (is(hit.title)) score += 3;
  if (GENERAL.has(hit.title.toLowerCase())) score *= 0.5;
  return { score, all };
}

function rank(hits, query) {
  const stems = parse(query);
  const phrase = fold(query).trimEnd();
  const number = (one) => hits.filter((hit) => hit.foldedText.includes(` ${one}`) || hit.foldedTitle.includes(` ${one}`)).length;
  const rarity = new Map(stems.map((one) => [one, Math.log(1 + hits.length / (1 + number(one)))]));
  const meanLength = hits.reduce((sum, hit) => sum + hit.length, 0) / hits.length;
  const rated = hits.filter((hit) => hit.page !== "changelog").map((hit) => ({ hit, ...rate(hit, stems, phrase, rarity, meanLength) }));
  const some = rated.filter(({ score }) => score > 0);
  const complete = some.filter(({ all }) => all);
  return complete.length ? complete : some;
}

/** All hits of a query by group, in the groups' order, the best of a group first. */
export async function find(query) {
  const { hits, pages } = await loadIndex();
  const words = fold(query);
  const others = SYNONYMS.filter(([name]) => words.includes(` ${split(name).map(spell).join(" ")} `)).map(([name, ours]) => words.replace(split(name).map(spell).join(" "), ours));
  const best = new Map();
  for (const one of [query, ...others]) {
    if (!parse(one).length) continue;
    for (const { hit, score } of rank(hits, one)) best.set(hit, Math.max(score, best.get(hit) ?? 0));
  }
  const groups = GROUPS.map(([name]) => ({ name, hits: [] }));
  for (const [hit] of [...best].sort(([, a], [, b]) => b - a)) {
    groups[GROUPS.findIndex(([, holds]) => holds(hit))].hits.push(hit);
  }
  return { groups: groups.filter((group) => group.hits.length), stems: [query, ...others].flatMap(parse), pages };
}

/** Titles that are spelled most like a query that finds nothing: those that share most pairs of letters. */
async function suggest(query) {
  const pairs = (text) => new Set([...plain(text).replace(/\s+/g, "")].map((letter, i, all) => letter + (all[i + 1] ?? "")));
  const wanted = pairs(query);
  const { hits } = await loadIndex();
  const near = hits.filter((hit) => hit.kind === "term").map(({ title }) => {
    const has = pairs(title);
    return { title, share: 2 * [...wanted].filter((pair) => has.has(pair)).length / (wanted.size + has.size) };
  });
  return near.filter(({ share }) => share > 0.4).sort((a, b) => b.share - a.share).slice(0, 4).map(({ title }) => title);
}

/** Appends `text` to `place`, with the words that begin with a stem marked. */
function write(place, text, stems) {
  for (const part of text.split(/([\p{L}\p{N}\p{M}]+)/u)) {
    const fits = part && stems.some((one) => split(part).some((word) => spell(word).startsWith(one)));
    if (fits) place.appendChild(document.createElement("mark")).textContent = part; else place.append(part);
  }
}

/** The part of a text around its first fitting word; a definition whole. */
function excerpt(hit, stems) {
  if (hit.kind !== "section" || hit.text.length <= EXCERPT) return hit.text;
  const words = hit.text.split(" ");
  const first = words.findIndex((word) => split(word).some((one) => stems.some((start) => spell(one).startsWith(start))));
  let from = Math.max(first - 8, 0);
  let length = 0;
  let to = from;
  while (to < words.length && length < EXCERPT) length += words[to++].length + 1;
  if (to === words.length) while (from > 0 && length < EXCERPT) length += words[--from].length + 1;
  return `${from ? "… " : ""}${words.slice(from, to).join(" ")}${to < words.length ? " …" : ""}`;
}

const make = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });

/** Fills `place` with the results of a query: of each group the first `shown`, and how many there are. */
async function fill(place, query, shown) {
  const { groups, stems, pages } = await find(query);
  const number = groups.reduce((sum, group) => sum + group.hits.length, 0);
  const status = make("p", "search-status");
  status.setAttribute("role", "status");
  const parts = [status];
  if (query.trim()) status.textContent = number ? `${number} place${number === 1 ? "" : "s"} found.` : `Nothing found for “${query.trim()}”.`;
  if (query.trim() && !number) {
    const near = await suggest(query);
    if (near.length) {
      status.append(" Did you mean ");
      near.forEach((title, i) => {
        const link = make("a", "", title);
        link.href = new URL(`search.html?q=${encodeURIComponent(title)}`, ROOT);
        status.append(i ? ", " : "", link);
      });
      status.append("?");
    }
  }
  for (const group of groups) {
    const list = make("ol", "search-hits");
    for (const hit of group.hits.slice(0, shown)) {
      const item = list.appendChild(document.createElement("li"));
      const link = item.appendChild(document.createElement("a"));
      link.href = new URL(`${hit.page}.html${hit.anchor ? `#${hit.anchor}` : ""}`, ROOT);
      write(link, hit.title, stems);
      item.appendChild(make("p", "search-where", pages[hit.page]));
      write(item.appendChild(make("p", "search-text")), excerpt(hit, stems), stems);
    }
    const more = group.hits.length - shown;
    parts.push(make("h2", "search-group", `${group.name}${more > 0 ? `, the best ${shown} of ${group.hits.length}` : ""}`), list);
  }
  place.replaceChildren(...parts);
}

/** Shows results under a field while a reader types. */
export function attach(field, place, { shown, keepAddress = false }) {
  let asked = 0;
  const update = async () => {
    const mine = ++asked;
    const draft = document.createElement("div");
    await fill(draft, field.value, shown);
    if (mine === asked) place.replaceChildren(...draft.childNodes);
  };
  // Arrow keys go from the field through the results and back.
  (field.closest("form") ?? field).parentElement.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const stops = [field, ...place.querySelectorAll(".search-hits a")];
    const at = stops.indexOf(document.activeElement);
    if (!step || at < 0 || !stops[at + step]) return;
    event.preventDefault();
    stops[at + step].focus();
  });
  field.addEventListener("input", () => {
    if (keepAddress) history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
    update();
  });
  return update();
}
