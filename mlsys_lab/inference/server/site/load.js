// A burst of sequences. A browser opens few connections to a server, so each request asks for several completions.

import { MODEL, request } from "./requests.js";

const N = 8;
const SHARED_PREFIX = "A server keeps the keys and values of all tokens that it has read, so that no token is ever read twice. "
  + "They lie in blocks of the cache, and texts that begin alike share those of their beginning. ";
const PROMPT_ENDS = ["A batch of many texts", "The memory of a GPU", "A scheduler decides", "When no block is left"];

export function startLoad() {
  const form = document.getElementById("load-form");
  const status = document.getElementById("load-status");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    const count = Number(document.getElementById("load").value);
    const responses = PROMPT_ENDS.slice(0, count / N).map((end) =>
      request("/v1/completions", { body: { model: MODEL, prompt: SHARED_PREFIX + end, max_tokens: 160, n: N } }));
    button.disabled = true;
    status.textContent = `Generating ${count} sequences…`;
    const failed = (await Promise.allSettled(responses)).find((result) => result.status === "rejected");
    status.textContent = failed ? failed.reason.message : `${count} sequences finished`;
    button.disabled = false;
  });
}
