"""The term plan on the page for instructors has the labs' own minutes and points."""

from __future__ import annotations

import re
import tomllib

from book.project import BOOK, ROOT

ROW = re.compile(r"^\| \d+ \|.*\]\(labs/([\w-]+)\.ipynb\)[^|]*\| (\d+) \|$", re.M)


def test_minutes_and_points_are_those_of_the_labs() -> None:
    text = (BOOK / "instructors.md").read_text("utf-8")
    planned: dict[str, int] = {}
    for name, minutes in ROW.findall(text):
        planned[name] = planned.get(name, 0) + int(minutes)
    for name, minutes in re.findall(r"\[lab \d+\]\(labs/([\w-]+)\.ipynb\) \((\d+) minutes\)", text):
        planned[name] = int(minutes)
    labs = {path.parent.name: tomllib.loads(path.read_text("utf-8")) for path in ROOT.glob("solutions/*/lab.toml")}
    assert planned == {name: lab["minutes"] for name, lab in labs.items()}
    assert {lab["points"] for lab in labs.values()} == {100}
    long = [int(name[:2]) for name, lab in sorted(labs.items()) if lab["minutes"] > 240 and name != "01-autograd"]
    assert f"Labs {', '.join(map(str, long[:-1]))} and {long[-1]} take more than four hours" in text
