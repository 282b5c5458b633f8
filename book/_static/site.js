// Every page: figures load what they need, pages print well, and lab pages lead into this machine's JupyterLab where there is one.
import "./widgets/load.js";
import "./print.js";
import "./predict.js";
import { jupyterlab } from "./local.js";

if (document.querySelector(".cell.live")) import("./live.js");

// JupyterLab's address carries its token, so the button leads straight into the notebook.
if (jupyterlab) {
  for (const buttons of document.querySelectorAll(".lab-buttons")) {
    const link = document.createElement("a");
    link.className = "lab-button lab-local";
    link.textContent = "Open in JupyterLab";
    link.href = jupyterlab.replace("{notebook}", buttons.dataset.notebook);
    buttons.prepend(link);
    buttons.classList.add("lab-is-local");
  }
}
