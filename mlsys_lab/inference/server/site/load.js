// A burst of sequences. A browser opens few connections to a server, so each request asks for several completions.

import { MODEL, request } from "./requests.js";

const N = 8;
const SHARED_PREFIX = "An inference server caches the keys and values of every token, so that no token is computed twice. "
  + "The cache is divided into blocks, and requests with the same prefix share its blocks. ";
const PROMPT_ENDS = ["A large batch", "The memory of a GPU", "A scheduler decides", "When no block is free"];

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
