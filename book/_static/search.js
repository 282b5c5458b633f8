/* The search page: finds sections, terms of the glossary and readings in window.searchIndex (book/_ext/search_index.py).

   A word of the query fits words that begin with its stem, however they are spelled: "quantised" finds "quantization".
   Hits have all words of the query; if there are none, those that have some. */
(() => {
  "use strict";

  const SHOWN = 40;
  const EXCERPT = 220;
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
    const telling = words.filter((word) => !COMMON.has(word));
    return [...new Set((telling.length ? telling : words).map(stem))];
  }

  const hits = window.searchIndex.hits.map(([page, anchor, title, text, kind]) => (
    { page, anchor, title, text, kind, foldedTitle: fold(title), foldedText: fold(text) }
  ));

  /** How well a hit fits: 0 if it lacks all the stems. `all` says whether it has every one. */
  function rate(hit, stems, phrase) {
    let score = 0;
    let all = true;
    for (const one of stems) {
      const inTitle = hit.foldedTitle.includes(` ${one}`);
      const times = hit.foldedText.split(` ${one}`).length - 1;
      if (!inTitle && !times) all = false;
      score += (inTitle ? 10 : 0) + Math.min(times, 4);
    }
    if (score === 0) return { score, all: false };
    if (hit.foldedTitle.includes(phrase)) score += 15;
    if (hit.foldedText.includes(phrase)) score += 4;
    if (split(hit.title).map(stem).join(" ") === stems.join(" ")) score += hit.kind === "term" ? 40 : 20;
    if (hit.kind === "reading") score -= 6;
    if (hit.page === "changelog") score -= 100;
    return { score, all };
  }

  function find(query) {
    const stems = parse(query);
    if (stems.length === 0) return { stems, found: [] };
    const rated = hits.map((hit) => ({ hit, ...rate(hit, stems, fold(query).trimEnd()) })).filter(({ score }) => score !== 0);
    const complete = rated.filter(({ all }) => all);
    const found = (complete.length ? complete : rated).sort((a, b) => b.score - a.score).map(({ hit }) => hit);
    return { stems, found };
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

  function show(query) {
    const { stems, found } = find(query);
    const list = document.createElement("ol");
    list.className = "search-hits";
    for (const hit of found.slice(0, SHOWN)) {
      const item = list.appendChild(document.createElement("li"));
      const link = item.appendChild(document.createElement("a"));
      link.href = `${hit.page}.html${hit.anchor ? `#${hit.anchor}` : ""}`;
      write(link, hit.title, stems);
      const where = item.appendChild(document.createElement("p"));
      where.className = "search-where";
      where.textContent = window.searchIndex.pages[hit.page];
      const text = item.appendChild(document.createElement("p"));
      text.className = "search-text";
      write(text, excerpt(hit, stems), stems);
    }
    const more = found.length > SHOWN ? `, the best ${SHOWN} of them here` : "";
    const status = document.createElement("p");
    status.className = "search-status";
    status.setAttribute("role", "status");
    if (query.trim()) status.textContent = found.length ? `${found.length} place${found.length === 1 ? "" : "s"} found${more}.` : `Nothing found for “${query.trim()}”.`;
    document.getElementById("search-results").replaceChildren(status, list);
  }

  const field = document.querySelector(".bd-search-container input[name=q]");
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  field.addEventListener("input", () => {
    history.replaceState(null, "", `?q=${encodeURIComponent(field.value)}`);
    show(field.value);
  });
  show(field.value);
})();
