// The editor of a code cell: CodeMirror with Python, in the page's colours. Shift+Enter runs the cell.
import { indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { syntaxHighlighting } from "@codemirror/language";
import { EditorView, keymap } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { minimalSetup } from "codemirror";

/** An editor of `text` under `parent`. `run` is called by Shift+Enter. Returns an object with the text as it stands. */
export function createEditor(parent, text, run) {
  const view = new EditorView({
    parent,
    doc: text,
    extensions: [
      keymap.of([{ key: "Shift-Enter", run: () => { run(); return true; } }, indentWithTab]),
      minimalSetup,
      python(),
      syntaxHighlighting(classHighlighter),
      EditorView.contentAttributes.of({ "aria-label": "Code of this cell. Escape, then Tab leaves the editor." }),
    ],
  });
  view.focus();
  return { get text() { return view.state.doc.toString(); } };
}
