"""Code cells of the chapters that readers run in their browser, in Python compiled to WebAssembly (Pyodide).

alone     a Python that has only the standard library and `mlsys_lab`, as the browser has
cells     which cells can run there, and which other cells each of them needs
session   runs cells; the same file works in the browser and here
runtime   puts Pyodide, the editor and the package where the site finds them
"""
