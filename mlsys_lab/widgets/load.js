// The one script that every page of the site loads: it fetches a figure's module only where the page holds such a figure.
export function loadFigures(place) {
  const figures = [...place.querySelectorAll(":not(:defined)")].filter((node) => node.localName.startsWith("mlsys-"));
  const modules = new Set(figures.map((node) => node.localName.slice("mlsys-".length)));
  for (const module of modules) import(new URL(`./${module}.js`, import.meta.url));
}
loadFigures(document);
