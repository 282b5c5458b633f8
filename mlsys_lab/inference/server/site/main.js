// The page: a chat, a crowd, the engine at work; and the key, where the server asks for one.

import { startChat } from "./chat.js";
import { startCrowd } from "./crowd.js";
import { setKey } from "./requests.js";
import { startWatch } from "./watch.js";

const form = document.getElementById("key-form");
const field = document.getElementById("key");

document.addEventListener("key-wanted", () => {
  if (!form.hidden) return;
  form.hidden = false;
  field.focus();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(field.value);
  field.value = "";
  form.hidden = true;
  document.dispatchEvent(new Event("key-given"));
});

startChat();
startCrowd();
startWatch();
