// Requests to this server, with the API key if there is one, and responses as server-sent events.

const KEY = "mlsys-lab:api-key";

export const MODEL = "mlsys-lab-target";

// An error response of the server.
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The key lasts as long as the tab.
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

// Returns the response; throws an ApiError. Dispatches `key-required` if the server requires a key.
export async function request(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) };
  const response = await fetch(path, { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal });
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event("key-required"));
  throw new ApiError((await response.json()).error.message, response.status);
}

// Yields the object of each event; throws an ApiError for an error event.
export async function* events(path, options) {
  const response = await request(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":")) continue; // a comment: the server is there, and has nothing to send
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const content = JSON.parse(data);
      if (content.error) throw new ApiError(content.error.message);
      yield content;
    }
  }
}
