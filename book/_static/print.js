// Before a page is printed its dropdowns open, and a dark theme gives way to ink on paper; afterwards all is as it was.
let undo = [];

addEventListener("beforeprint", () => {
  const closed = [...document.querySelectorAll("details:not([open])")];
  const theme = document.documentElement.dataset.theme;
  for (const details of closed) details.open = true;
  document.documentElement.dataset.theme = "light";
  undo = [
    () => closed.forEach((details) => (details.open = false)),
    () => (document.documentElement.dataset.theme = theme),
  ];
});

addEventListener("afterprint", () => {
  for (const back of undo.splice(0)) back();
});
