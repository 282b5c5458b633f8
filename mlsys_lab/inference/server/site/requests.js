// Requests to this server: with the key, where there is one, and with answers that come as events.

const KEY = "mlsys-lab:api-key";

export const MODEL = "mlsys-lab-target";

// What the server says where it does not do what it is asked.
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The key lasts as long as the tab.
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

// Returns the response; throws a Refusal, and tells the page where a key is asked for.
export async function ask(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
  const response = await fetch(path, { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal });
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event("key-wanted"));
  throw new Refusal((await response.json()).error.message, response.status);
}

// Yields the object of each event; throws a Refusal for one that tells of an error.
export async function* events(path, options) {
  const response = await ask(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const content = JSON.parse(data);
      if (content.error) throw new Refusal(content.error.message);
      yield content;
    }
  }
}
