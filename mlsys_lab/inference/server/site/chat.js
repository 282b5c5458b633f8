// The conversation: what is said goes to /v1/chat/completions, and the answer is written as it comes.

import { MODEL, events } from "./requests.js";

const find = (id) => document.getElementById(id);

export function startChat() {
  const [log, form, said, send, stop] = ["log", "chat-form", "said", "send", "stop"].map(find);
  let turns = [];
  let asking = null;

  function add(kind, text) {
    const entry = document.createElement("li");
    entry.className = kind;
    entry.textContent = text;
    log.append(entry);
    log.scrollTop = log.scrollHeight;
    return entry;
  }

  function setBusy(busy) {
    send.disabled = busy;
    stop.disabled = !busy;
    log.setAttribute("aria-busy", String(busy)); // so that an answer is read out when it is whole
  }

  async function answer() {
    const body = {
      model: MODEL, messages: turns, stream: true, temperature: find("temperature").valueAsNumber, max_tokens: find("most").valueAsNumber,
    };
    const entry = add("assistant writing", "");
    try {
      for await (const chunk of events("/v1/chat/completions", { body, signal: asking.signal })) {
        entry.append(chunk.choices[0]?.delta.content ?? "");
        log.scrollTop = log.scrollHeight;
      }
    } finally {
      entry.classList.remove("writing");
      if (!entry.textContent) entry.remove();
    }
    return entry.textContent;
  }

  async function submit() {
    const text = said.value.trim();
    if (!text || asking) return;
    const before = turns;
    const mine = asking = new AbortController();
    turns = [...turns, { role: "user", content: text }];
    const entry = add("user", text);
    said.value = "";
    setBusy(true);
    try {
      const content = await answer();
      if (!content) throw new Error("The model had nothing to say.");
      turns = [...turns, { role: "assistant", content }];
    } catch (error) {
      if (asking === mine) turns = before; // what got no whole answer is no part of the conversation
      if (error.name !== "AbortError") {
        entry.remove();
        said.value ||= text;
        add("error", error.message);
      }
    }
    if (asking === mine) {
      asking = null;
      setBusy(false);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  said.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => asking?.abort());
  find("anew").addEventListener("click", () => {
    asking?.abort();
    asking = null;
    turns = [];
    log.replaceChildren();
    setBusy(false);
    said.focus();
  });
}
