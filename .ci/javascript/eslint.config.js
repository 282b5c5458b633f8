// ESLint's recommended rules for every script of the repository: `make javascript`, from the repository's root.
import { readdirSync, readFileSync } from "node:fs";
import js from "@eslint/js";
import globals from "globals";

const WIDGETS = "mlsys_lab/widgets";
const files = readdirSync(WIDGETS).filter((name) => name.endsWith(".js")).map((name) => `${WIDGETS}/${name}`);
const source = Object.fromEntries(files.map((file) => [file, readFileSync(file, "utf8")]));
// A figure's module is joined by Python out of several files, so what one defines at its top another may use.
const pieces = files.filter((file) => !/^(import|export) |import\.meta/m.test(source[file]));
const shared = files.flatMap((file) => [...source[file].matchAll(/^(?:async )?(?:const|let|function|class) (\w+)/gm)].map((found) => found[1]));

export default [
  js.configs.recommended,
  { languageOptions: { globals: globals.browser }, rules: { "no-unused-vars": ["error", { vars: "local" }] } },
  { files: [`${WIDGETS}/*.js`], languageOptions: { globals: Object.fromEntries(shared.map((name) => [name, "readonly"])) } },
  { files: [...pieces, "book/_static/readings.js", "tests/**/*.js"], languageOptions: { sourceType: "script" } },
  { files: pieces, rules: { "no-redeclare": "off" } }, // its own names are among the shared ones
];
