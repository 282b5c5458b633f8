// The editor of a code cell: CodeMirror with Python, in the page's colours.
import { indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { minimalSetup } from "codemirror";

// Colours are variables of _static/live.css, which follow the page's light and dark.
const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--live-keyword)" },
  { tag: tags.string, color: "var(--live-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--live-number)" },
  { tag: tags.comment, color: "var(--live-comment)", fontStyle: "italic" },
]);
const LOOK = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--surface)", borderRadius: "8px" },
  "&.cm-focused": { outline: "1px solid var(--blue)" },
  ".cm-content": { caretColor: "var(--ink)", fontFamily: "var(--pst-font-family-monospace)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
});

/** An editor of `text` under `parent`. Shift+Enter and Ctrl+Enter call `run`. Returns an object with the text as it stands. */
export function createEditor(parent, text, run) {
  // Sphinx has shortcuts of single keys, among them "/" for the search.
  parent.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  const act = () => { run(); return true; };
  const view = new EditorView({
    parent,
    doc: text,
    extensions: [
      keymap.of([{ key: "Shift-Enter", run: act }, { key: "Mod-Enter", run: act }, indentWithTab]),
      indentUnit.of("    "),
      minimalSetup,
      python(),
      syntaxHighlighting(COLOURS),
      LOOK,
      EditorView.contentAttributes.of({ "aria-label": "Code of this cell. Escape, then Tab leaves the editor." }),
    ],
  });
  view.focus();
  return { get text() { return view.state.doc.toString(); } };
}
