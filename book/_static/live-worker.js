// A page's Python (Pyodide). It is a worker, so a cell that never ends can be stopped: the page ends the worker.
import { loadPyodide } from "./live/pyodide.mjs";

const folder = new URL("./live/", import.meta.url);

async function start() {
  const [pyodide, archive] = await Promise.all([
    loadPyodide({ indexURL: folder.href }),
    fetch(new URL("package.zip", folder)).then((response) => response.arrayBuffer()),
  ]);
  pyodide.unpackArchive(archive, "zip");
  return pyodide.runPython("import live_session; live_session.Session()");
}

const session = start();

onmessage = async ({ data: { cells, index } }) => {
  try {
    const emit = (kind, cell, content) => postMessage({ kind, cell, content });
    const { run } = await session;
    postMessage({ kind: "ready" });
    run(JSON.stringify(cells), index, emit);
  } catch (error) {
    postMessage({ kind: "error", cell: index, content: String(error).trim().split("\n").at(-1) });
  }
  postMessage({ kind: "done" });
};
