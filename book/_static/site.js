// Every page: figures load what they need, pages print well, the search answers while a reader types, and lab pages lead
// into this machine's JupyterLab where there is one.
import "./widgets/load.js";
import "./print.js";
import "./predict.js";
import "./progress.js";
import "./sections.js";
import { jupyterlab } from "./local.js";

if (document.querySelector(".cell.live")) import("./live.js");
if (document.querySelector(".milestones")) import("./milestones.js");
if (document.querySelector("table.leaderboard")) import("./leaderboard.js");
if (matchMedia("(min-width: 1200px)").matches) import("./margin.js").then(({ start }) => start());

const searchPage = document.querySelector(".bd-search-container");
if (searchPage) {
  const field = searchPage.querySelector("input[name=q]");
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  import("./search.js").then(({ attach }) => attach(field, document.getElementById("search-results"), { shown: 12, keepAddress: true }));
}

// The dialog: its results are there once a reader types, and Enter leads to the page of all of them.
const dialogField = document.querySelector("#pst-search-dialog input");
dialogField?.addEventListener("focus", async () => {
  const place = Object.assign(document.createElement("div"), { className: "search-dialog-results" });
  dialogField.form.after(place);
  const { attach } = await import("./search.js");
  attach(dialogField, place, { shown: 4 });
}, { once: true });

// JupyterLab's address carries its token, so the button leads straight into the notebook.
if (jupyterlab) {
  for (const buttons of document.querySelectorAll(".lab-buttons")) {
    const link = document.createElement("a");
    link.className = "lab-button lab-local";
    link.textContent = "Open in JupyterLab";
    link.target = "mlsys-jupyterlab"; // a tab of its own, the same for all notebooks
    link.href = jupyterlab.replace("{notebook}", buttons.dataset.notebook);
    buttons.prepend(link);
    buttons.classList.add("lab-is-local");
  }
}
