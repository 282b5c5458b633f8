"""What a stranger meets first: README, licences, citation, contributing, workflows, and where versions come from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from book.project import read_address
from mlsys_lab.stack.labinfo import released_labs

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FLOW = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_readme_opens_with_the_site_one_button_the_licences_and_the_state() -> None:
    first = README[: README.index("<!-- labs: begin -->")]
    address = read_address()
    lab = released_labs(ROOT / "labs")[0]
    assert address.site in first and first.count("colab-badge") == 1
    assert address.colab(f"labs/{lab.name}/{lab.notebook.name}") in first
    assert "(LICENSE)" in first and "(book/LICENSE)" in first and "\nState: " in first


def test_the_course_has_one_name() -> None:
    config = yaml.safe_load((ROOT / "book/_config.yml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    short, _, rest = config["title"].partition(": ")
    assert config["title"] == citation["title"] == README.splitlines()[0].removeprefix("# ")
    settings = config["sphinx"]["config"]
    assert settings["project"] == settings["html_title"] == settings["html_theme_options"]["logo"]["text"] == short
    heading = re.search(r"^# (.*)$", (ROOT / "book/index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert short == PROJECT["name"] and heading and heading[1].lower() == rest.lower()


def test_the_table_has_every_lab_with_its_minutes() -> None:
    table = README.partition("<!-- labs: begin -->\n")[2].partition("<!-- labs: end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    labs = released_labs(ROOT / "labs")
    assert [(row[1], row[2], row[3]) for row in rows] == [
        (f"[{lab.title}](labs/{lab.name}/{lab.notebook.name})", lab.summary, str(lab.minutes)) for lab in labs
    ]


def test_every_lab_is_proved_once_a_week() -> None:
    flow = yaml.safe_load((GITHUB / "workflows/mutations.yml").read_text(encoding="utf-8"))
    topics = [lab.name.partition("-")[2] for lab in released_labs(ROOT / "labs")]
    assert flow["jobs"]["prove"]["strategy"]["matrix"]["lab"] == topics


def test_the_licences_are_told_in_one_way() -> None:
    assert PROJECT["license"] == "MIT AND CC-BY-4.0"
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == PROJECT["license"].split(" AND ")
    assert {"name": "The mlsys-lab authors"} in citation["authors"] and citation["authors"] == PROJECT["authors"]
    for name in PROJECT["license-files"]:
        assert "The mlsys-lab authors" in (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_address() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation) and citation["cff-version"] == "1.2.0"
    address = read_address()
    assert (citation["version"], citation["repository-code"], citation["url"]) == (
        PROJECT["version"],
        address.repository,
        address.site,
    )
    for page in (GITHUB / "SECURITY.md", GITHUB / "ISSUE_TEMPLATE/config.yml"):
        assert f"{address.repository}/security/advisories/new" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_a_page_for_contributors_points_to_is_there(page: str) -> None:
    named = re.findall(r"\]\((?!https?:)([^)#]+)\)", (GITHUB / page).read_text(encoding="utf-8"))
    assert named and [name for name in named if not (GITHUB / name).exists()] == []


@pytest.mark.parametrize("page", [GITHUB / "CONTRIBUTING.md", GITHUB / "pull_request_template.md", ROOT / "README.md"])
def test_every_make_target_that_is_named_is_one(page: Path) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named and named <= TARGETS


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_template_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert "contact_links" in form or (form["name"] and form["description"] and form["body"])


def test_ci_tests_every_python_that_the_package_names() -> None:
    named = {entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)}
    assert set(FLOW["jobs"]["test"]["strategy"]["matrix"]["python"]) == named
    assert FLOW["permissions"] == {"contents": "read"}


def test_the_javascript_linter_is_pinned_and_comes_from_the_public_registry() -> None:
    packages = json.loads((ROOT / ".ci/javascript/package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", pin) for pin in packages.pop("")["devDependencies"].values())
    assert packages and all(package["integrity"] for package in packages.values())
    assert all(package["resolved"].startswith("https://registry.npmjs.org/") for package in packages.values())


def test_constraints_are_written_from_what_pip_resolved(tmp_path: Path) -> None:
    packages = [("torch", "2.13.0+cpu", {}), ("Jinja2", "3.1.6", {}), ("idna", "3.10", {})]
    own = ("mlsys-lab", "0.1.0", {"dir_info": {}})
    report = [
        {"metadata": {"name": name, "version": version}, "download_info": info}
        for name, version, info in [*packages, own]
    ]
    (tmp_path / "report.json").write_text(json.dumps({"install": report}))
    command = [sys.executable, str(ROOT / ".ci/constraints"), "report.json", "constraints.txt"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "constraints.txt").read_text() == "idna==3.10\nJinja2==3.1.6\ntorch==2.13.0\n"


def test_constraints_are_in_that_order_and_hold_all_that_the_project_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines == sorted(lines, key=str.lower)
    held = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines}
    asked = [*PROJECT["dependencies"], *(item for extra in PROJECT["optional-dependencies"].values() for item in extra)]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", item)[0]).lower() for item in asked} - {"mlsys-lab"}
    assert names <= held


ASKED_BY_TORCH = {"2.13.0": {"triton": "3.7.1", "nvidia-cuda-nvrtc": "13.0.88"}}
"""What a build of torch for GPUs asks for, by its metadata on PyPI (nvrtc through cuda-toolkit); that for CPUs asks for
none of it, so a pin that was resolved beside it may keep pip from installing the other.
"""


def test_the_constraints_can_be_held_by_either_build_of_torch() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines)
    asked = ASKED_BY_TORCH[pins["torch"]]
    assert {name: pins[name] for name in asked} == asked
