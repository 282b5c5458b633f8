// The chat: messages go to /v1/chat/completions, and the answer is shown as it streams in.

import { MODEL, events } from "./requests.js";

const find = (id) => document.getElementById(id);

export function startChat() {
  const [log, form, input, send, stop] = ["log", "chat-form", "message", "send", "stop"].map(find);
  let messages = [];
  let controller = null; // of the answer that is streaming

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
    log.setAttribute("aria-busy", String(busy)); // so that a screen reader reads the answer once it is complete
  }

  async function answer() {
    const body = {
      model: MODEL, messages, stream: true, temperature: find("temperature").valueAsNumber, max_tokens: find("max-tokens").valueAsNumber,
    };
    const entry = add("assistant streaming", "");
    try {
      for await (const chunk of events("/v1/chat/completions", { body, signal: controller.signal })) {
        entry.append(chunk.choices[0]?.delta.content ?? "");
        log.scrollTop = log.scrollHeight;
      }
    } finally {
      entry.classList.remove("streaming");
      if (!entry.textContent) entry.remove();
    }
    return entry.textContent;
  }

  async function submit() {
    const text = input.value.trim();
    if (!text || controller) return;
    const before = messages;
    const mine = controller = new AbortController();
    messages = [...messages, { role: "user", content: text }];
    const entry = add("user", text);
    input.value = "";
    setBusy(true);
    try {
      const content = await answer();
      if (!content) throw new Error("The model generated no text.");
      messages = [...messages, { role: "assistant", content }];
    } catch (error) {
      if (controller === mine) messages = before; // a message without an answer is not part of the conversation
      if (error.name !== "AbortError") {
        entry.remove();
        input.value ||= text;
        add("error", error.message);
      }
    }
    if (controller === mine) {
      controller = null;
      setBusy(false);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  stop.addEventListener("click", () => controller?.abort());
  find("new-chat").addEventListener("click", () => {
    controller?.abort();
    controller = null;
    messages = [];
    log.replaceChildren();
    setBusy(false);
    input.focus();
  });
}
