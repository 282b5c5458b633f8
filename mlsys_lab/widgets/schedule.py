"""A schedule drawn as a table: requests down, steps across, and in each cell the tokens of a request in a step."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


class Schedule:
    """Drawing of a scheduler's steps, as the value of a notebook cell.

    steps: for each step the number of scheduled tokens by request; num_prompt_tokens: of each request, by its name.
    The site colours tokens of prompts and decoded tokens, the stronger the more tokens a request has in the step.

    >>> print(Schedule([{"A": 2}, {"A": 1}], {"A": 2})._repr_html_().count("<td"))
    2
    """

    def __init__(self, steps: Sequence[Mapping[str, int]], num_prompt_tokens: Mapping[str, int]) -> None:
        most = max((count for step in steps for count in step.values()), default=1)
        numbers = "".join(f'<th scope="col">{number}</th>' for number in range(1, len(steps) + 1))
        rows = (self._row(name, steps, prompt, most) for name, prompt in num_prompt_tokens.items())
        self._html = (
            f'<table class="schedule"><caption>tokens in each step: '
            f'<span class="prefill">prefill</span> <span class="decode">decode</span></caption>'
            f'<tr><th scope="col">step</th>{numbers}</tr>{"".join(rows)}</table>'
        )

    def _row(self, name: str, steps: Sequence[Mapping[str, int]], prompt: int, most: int) -> str:
        cells, computed = [], 0
        for step in steps:
            count = step.get(name, 0)
            kind = "prefill" if computed < prompt else "decode"
            computed += count
            cells.append(
                f'<td class="{kind}" style="--part: {count / most:.2f}">{count}</td>' if count else "<td></td>"
            )
        return f'<tr><th scope="row">{html.escape(name)}</th>{"".join(cells)}</tr>'

    def _repr_html_(self) -> str:
        return self._html
