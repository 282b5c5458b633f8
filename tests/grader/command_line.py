"""What the tests of commands share: the lab they are asked about, and how they look at what was said and left."""

from pathlib import Path

LAB = "01-tiny"


def read_tree(folder: Path) -> dict[Path, bytes | None]:
    """Every file and folder below, each file with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def expect_one_line(result: tuple[int, str, str], said: str, code: int = 1) -> None:
    """`result` is that exit code, nothing on stdout, and one line on stderr that holds `said`."""
    assert (result[0], result[1]) == (code, ""), result
    assert result[2].startswith("mlsys-grader: ") and result[2].count("\n") == 1, result[2]
    assert said in result[2]
