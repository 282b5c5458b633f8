// A figure's settings in the page's address, so that the figure can be shared: #device=H200&tensor=8.
// Needs common.js.

// How a setting is written into an address, and read from it: undefined for what it cannot be.
const inAddress = {
  oneOf: (values) => ({ read: (text) => (values.includes(text) ? text : undefined), write: String }),
  number: {
    read: (text) => (text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : undefined),
    write: (value) => (Number.isFinite(value) ? String(value) : ""),
  },
  mark: { read: (text) => ({ yes: true, no: false })[text], write: (value) => (value ? "yes" : "no") },
  // An object with the keys of the one that the figure opens with.
  like: (opened) => ({
    read(text) {
      try {
        const value = JSON.parse(text);
        return Object.keys(opened).every((key) => key in value) ? value : undefined;
      } catch {
        return undefined;
      }
    },
    write: JSON.stringify,
  }),
};

// `kinds` tells of each setting how it is written; `settings()` has their values now, `apply(some)` takes new ones. What
// differs from what the figure opened with goes into the address. An address without "=" names a place on the page and is
// left alone. Returns a function to call after each change, and what ends it all.
function keepAddress(kinds, settings, apply) {
  const opened = settings();
  const differs = (now) => Object.keys(kinds).filter((name) => kinds[name].write(now[name]) !== kinds[name].write(opened[name]));

  function write() {
    const now = settings();
    const hash = new URLSearchParams(differs(now).map((name) => [name, kinds[name].write(now[name])])).toString();
    if (hash) history.replaceState(null, "", `#${hash}`);
    else if (location.hash.includes("=")) history.replaceState(null, "", location.pathname + location.search);
  }

  function read() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return;
    const found = [...new URLSearchParams(hash)].filter(([name]) => Object.hasOwn(kinds, name)).map(([name, text]) => [name, kinds[name].read(text)]);
    apply({ ...opened, ...Object.fromEntries(found.filter(([, value]) => value !== undefined)) });
  }

  if (location.hash.includes("=")) read();
  addEventListener("hashchange", read);
  return { write, stop: () => removeEventListener("hashchange", read) };
}

