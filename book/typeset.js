// Sets formulas as HTML with the MathJax in a folder: `node typeset.js FOLDER`, JSON on standard input and output.
// In: {formulas: [[TeX, display], …], fonts: address}. Out: {html: […], css}, the style sheet for all of them.
const path = require("node:path");
const { readFileSync } = require("node:fs");

const mathjax = path.resolve(process.argv[2]);
const { formulas, fonts } = JSON.parse(readFileSync(0, "utf8"));

require(path.join(mathjax, "node-main.js"))
  .init({
    loader: { load: ["input/tex", "output/chtml", "a11y/assistive-mml", "[tex]/boldsymbol"], paths: { mathjax } },
    tex: {
      packages: { "[+]": ["boldsymbol"], "[-]": ["noundefined"] },
      formatError: (_, error) => { throw error; },
    },
    chtml: { scale: 0.95, fontURL: fonts },
    startup: { typeset: false },
  })
  .then((MathJax) => {
    const adaptor = MathJax.startup.adaptor;
    const set = ([tex, display]) => {
      try {
        return adaptor.outerHTML(MathJax.tex2chtml(tex, { display }));
      } catch (error) {
        throw new Error(`${tex}: ${error.message}`);
      }
    };
    const html = formulas.map(set);
    process.stdout.write(JSON.stringify({ html, css: adaptor.textContent(MathJax.chtmlStylesheet()) }));
  })
  .catch((error) => {
    process.stderr.write(`${error.message}\n`);
    process.exit(1);
  });
