/* Check-off, progress and filters for the reading list. The pages work without it: everything here is added to finished HTML.

   Hooks (written by book/_ext/readings_html.py):
     [data-readings]        the full table with its hidden filter form
     [data-readings-list]   a chapter's "Read next"
     [data-progress]        a bar over the ids in its value
   What a reader has read lives in localStorage under KEY as {format, done: {id: "YYYY-MM-DD"}}, the same object that Export writes. */
(() => {
  "use strict";
  if (window.mlsysReadings) return; // a page may list this file twice
  window.mlsysReadings = true;

  const KEY = "mlsys-lab:readings";
  const FORMAT = "mlsys-lab readings 1";
  const DATE = /^\d{4}-\d{2}-\d{2}$/;

  /** The reader's record. Without localStorage (private window, file policy) it lasts as long as the page, and says so. */
  class Progress extends EventTarget {
    constructor() {
      super();
      this.kept = true;
      this.done = this.#load();
      window.addEventListener("storage", (event) => {
        if (event.key === KEY || event.key === null) this.#changed(this.#load());
      });
    }

    has(id) { return this.done.has(id); }

    set(id, read) {
      const done = this.#load(); // another tab may have written since
      if (read) done.set(id, new Date().toISOString().slice(0, 10)); else done.delete(id);
      this.#save(done);
    }

    /** Adds the entries of an exported text. Returns how many were new; throws an Error whose message is for the reader. */
    merge(text) {
      const added = parse(text);
      const done = this.#load();
      const before = done.size;
      for (const [id, date] of added) if (!done.has(id)) done.set(id, date);
      this.#save(done);
      return done.size - before;
    }

    text() { return `${JSON.stringify({ format: FORMAT, done: Object.fromEntries([...this.done].sort()) }, null, 2)}\n`; }

    #load() {
      if (!this.kept) return new Map(this.done);
      let text;
      try {
        text = localStorage.getItem(KEY);
      } catch {
        this.kept = false;
        return new Map(this.done);
      }
      if (text === null) return new Map();
      try {
        return parse(text);
      } catch {
        return new Map(); // damaged by hand or by another program: begin afresh, the next check-off writes it anew
      }
    }

    #save(done) {
      this.#changed(done);
      if (!this.kept) return;
      try {
        localStorage.setItem(KEY, this.text());
      } catch {
        this.kept = false;
      }
    }

    #changed(done) {
      this.done = done;
      this.dispatchEvent(new Event("change"));
    }
  }

  /** The Map id → date in an exported text; throws an Error that says what is wrong with it. */
  function parse(text) {
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      throw new Error("This file is not JSON; choose one that Export wrote.");
    }
    if (data === null || typeof data !== "object" || data.format !== FORMAT) {
      throw new Error(`This file is not a reading record; expected “format”: “${FORMAT}”.`);
    }
    if (data.done === null || typeof data.done !== "object" || Array.isArray(data.done)) {
      throw new Error("This reading record has no “done” list; choose another export.");
    }
    for (const [id, date] of Object.entries(data.done)) {
      if (typeof date !== "string" || !DATE.test(date)) throw new Error(`The date of “${id}” is not YYYY-MM-DD; nothing was imported.`);
    }
    return new Map(Object.entries(data.done));
  }

  const fold = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const plural = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

  /** Lets the checkboxes before the titles under `root` show what has been read, and change it. */
  function addChecks(root, progress) {
    for (const item of root.querySelectorAll("[data-id]")) {
      const box = item.querySelector(".readings-check");
      box.addEventListener("change", () => progress.set(item.dataset.id, box.checked));
      const show = () => {
        box.checked = progress.has(item.dataset.id);
        item.classList.toggle("readings-done", box.checked);
      };
      progress.addEventListener("change", show);
      show();
    }
  }

  function addProgress(element, progress) {
    const ids = element.dataset.progress.split(" ");
    const bar = element.querySelector("progress");
    const label = element.querySelector("span");
    const show = () => {
      const read = ids.filter((id) => progress.has(id)).length;
      bar.value = read;
      label.textContent = `${read} of ${ids.length} read`;
      element.classList.toggle("readings-complete", read === ids.length);
    };
    progress.addEventListener("change", show);
    show();
  }

  /** Search, filters, their state in the address, export and import. */
  class Table {
    constructor(root, progress) {
      this.root = root;
      this.progress = progress;
      this.form = root.querySelector(".readings-filters");
      this.rows = [...root.querySelectorAll("tr[data-id]")];
      this.words = new Map(this.rows.map((row) => [row, fold(row.textContent)]));
      for (const group of root.querySelectorAll("tbody")) group.removeAttribute("id"); // a filter from now on, no place to jump to
      for (const topic of root.querySelectorAll("span[data-topic]")) this.linkTopic(topic);
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", () => this.chosen());
      this.form.addEventListener("reset", () => setTimeout(() => this.chosen()));
      window.addEventListener("hashchange", () => this.fromAddress());
      progress.addEventListener("change", () => this.show());
      root.querySelector("[data-export]").addEventListener("click", () => this.exportFile());
      const file = root.querySelector("input[type=file]");
      root.querySelector("[data-import]").addEventListener("click", () => file.click());
      file.addEventListener("change", () => this.importFile(file));
      this.fromAddress();
    }

    linkTopic(span) {
      const link = document.createElement("a");
      link.href = `#topic=${span.dataset.topic}`;
      link.textContent = span.textContent;
      span.replaceWith(link);
    }

    get filters() {
      return Object.fromEntries([...new FormData(this.form)].filter(([, value]) => value.trim() !== ""));
    }

    /** A hash such as #topic=triton&time=60 sets the form; one without "=" is an ordinary anchor and leaves it alone. */
    fromAddress() {
      const hash = location.hash.slice(1);
      if (hash.includes("=") || hash === "") {
        const wanted = new URLSearchParams(hash);
        for (const field of this.form.querySelectorAll("[name]")) field.value = wanted.get(field.name) ?? "";
        for (const field of this.form.querySelectorAll("select")) if (field.selectedIndex < 0) field.value = "";
      }
      this.show();
      if (hash.includes("=")) this.root.scrollIntoView();
    }

    chosen() {
      const hash = new URLSearchParams(this.filters).toString();
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
      this.show();
    }

    show() {
      const filters = this.filters;
      const words = fold(filters.find ?? "").split(/\s+/).filter(Boolean);
      const fits = (row) => {
        const data = row.dataset;
        return words.every((word) => this.words.get(row).includes(word))
          && (!filters.topic || data.topics.split(" ").includes(filters.topic))
          && (!filters.chapter || data.chapters.split(" ").includes(filters.chapter))
          && ["kind", "level", "language"].every((name) => !filters[name] || data[name] === filters[name])
          && (!filters.time || Number(data.minutes) <= Number(filters.time))
          && (!filters.show || { star: data.star === "1", ours: data.ours === "1", seeds: data.ours === "", read: this.progress.has(data.id), unread: !this.progress.has(data.id) }[filters.show]);
      };
      let count = 0;
      for (const row of this.rows) {
        row.hidden = !fits(row);
        count += row.hidden ? 0 : 1;
      }
      for (const group of this.root.querySelectorAll("tbody")) group.hidden = !group.querySelector("tr[data-id]:not([hidden])");
      this.root.querySelector(".readings-none").hidden = count > 0;
      this.say(".readings-count", count === this.rows.length ? `All ${plural(count, "reading")}` : `${count} of ${plural(this.rows.length, "reading")}`);
      const read = this.rows.filter((row) => this.progress.has(row.dataset.id)).length;
      this.root.querySelector("[data-mine]").textContent = `You have read ${read}.`;
      if (!this.progress.kept) this.say(".readings-message", "This browser keeps nothing for this page: export before you leave.");
    }

    exportFile() {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([this.progress.text()], { type: "application/json" }));
      link.download = "mlsys-readings.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href));
      this.say(".readings-message", `Wrote ${plural(this.progress.done.size, "check-off")} to mlsys-readings.json.`);
    }

    async importFile(input) {
      const [file] = input.files;
      input.value = ""; // so that choosing the same file again is a change
      if (!file) return;
      try {
        const added = this.progress.merge(await file.text());
        this.say(".readings-message", `Added ${plural(added, "check-off")} from ${file.name}.`);
      } catch (error) {
        this.say(".readings-message", error.message);
      }
    }

    /** Announces only what changed, so that a screen reader is not interrupted at every key. */
    say(selector, text) {
      const place = this.root.querySelector(selector);
      if (place.textContent !== text) place.textContent = text;
    }
  }

  function start() {
    const progress = new Progress();
    for (const root of document.querySelectorAll("[data-readings], [data-readings-list]")) addChecks(root, progress);
    for (const element of document.querySelectorAll("[data-progress]")) addProgress(element, progress);
    for (const root of document.querySelectorAll("[data-readings]")) new Table(root, progress);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
