// The page: a chat, a burst of load, a view of the engine, and the API key if the server requires one.

import { startChat } from "./chat.js";
import { startLoad } from "./load.js";
import { setKey } from "./requests.js";
import { startWatch } from "./watch.js";

const form = document.getElementById("key-form");
const field = document.getElementById("key");

document.addEventListener("key-required", () => {
  if (!form.hidden) return;
  form.hidden = false;
  field.focus();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(field.value);
  field.value = "";
  form.hidden = true;
  document.dispatchEvent(new Event("key-entered"));
});

startChat();
startLoad();
startWatch();
