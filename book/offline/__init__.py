"""The whole book in one file, made of the built site: `python -m book.offline pdf` or `epub`.

`parts` takes the chapters out of the site's pages, with the answers to their problems at the end; `pdf` prints them
with Chromium, and `epub` writes them as XHTML, with formulas in MathML.
"""
