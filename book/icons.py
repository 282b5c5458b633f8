"""Icons of the theme as masks in the style sheet: its fonts of icons weigh 270 kB, and pages show some twenty icons."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import quote

_ICON = re.compile(r'"?([a-z][a-z0-9-]*)"?:\[(\d+),(\d+),\[[^\]]*\],"[0-9a-f]+",(?:"([^"]+)"|\["[^"]*","([^"]+)"\])\]')
KINDS = ":is(.fa-solid,.fa-regular,.fa-brands,.fas,.far,.fab)"
RENAMED = {"pencil-alt": "pencil"}
"""Older names of icons, which templates still use."""
SHOWN = (
    f"{KINDS}{{font-family:inherit}}{KINDS}::before{{content:'';display:inline-block;height:1em;width:var(--icon-width,1em);vertical-align:-.125em;"
    "background:currentcolor;mask:var(--icon) center/contain no-repeat}"
)
"""How an icon is drawn, in the colour of the text around it."""


def masks(script: str, words: Collection[str]) -> str:
    """Style sheet for the icons among `words` (fa-bars, …), with the paths that Font Awesome's script has.

    Of icons that come in several styles the last in the script is taken, which is the solid one.
    """
    rules = [SHOWN]
    icons = {name: rest for name, *rest in _ICON.findall(script)}
    icons |= {old: icons[new] for old, new in RENAMED.items() if new in icons}
    for name, (width, height, path, second) in icons.items():
        if f"fa-{name}" in words:
            drawn = f"<path d='{path or second}'/>"
            svg = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>{drawn}</svg>"
            address, wide = quote(svg, safe=" '=/:,;"), f"{int(width) / int(height):.3g}em"
            rules.append(f'.fa-{name}{{--icon:url("data:image/svg+xml,{address}");--icon-width:{wide}}}')
    return "\n".join(rules)
