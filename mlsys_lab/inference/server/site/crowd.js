// Many texts at once. A browser opens few connections to a server, so each request asks for several texts.

import { MODEL, ask } from "./requests.js";

const EACH = 8;
const BEGINNING = "A server keeps the keys and values of all tokens that it has read, so that no token is ever read twice. "
  + "They lie in blocks of the cache, and texts that begin alike share those of their beginning. ";
const ENDS = ["A batch of many texts", "The memory of a GPU", "A scheduler decides", "When no block is left"];

export function startCrowd() {
  const form = document.getElementById("crowd-form");
  const said = document.getElementById("crowd-said");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    const count = Number(document.getElementById("crowd").value);
    const requests = ENDS.slice(0, count / EACH).map((end) =>
      ask("/v1/completions", { body: { model: MODEL, prompt: BEGINNING + end, max_tokens: 160, n: EACH } }));
    button.disabled = true;
    said.textContent = `${count} texts are being written…`;
    const refused = (await Promise.allSettled(requests)).find((one) => one.status === "rejected");
    said.textContent = refused ? refused.reason.message : `${count} texts written`;
    button.disabled = false;
  });
}
