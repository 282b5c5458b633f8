"""Read a YAML list of records; every mistake is one line naming file, line, entry, field, what was got and expected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mlsys_lab.errors import InputError


@dataclass(frozen=True)
class Record:
    """One mapping of a YAML list: its values, and where it stands in the file, for messages."""

    values: dict[str, Any]
    where: str  # "readings.yml line 12, entry 'micrograd'"

    def text(self, field: str, *, one_of: tuple[str, ...] = (), optional: bool = False) -> str:
        """Non-empty string in `field`, one of `one_of` where given; a missing optional field gives ""."""
        if optional and field not in self.values:
            return ""
        value = self.values.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(field, value, "some text")
        if one_of and value not in one_of:
            raise self.wrong(field, value, "one of " + ", ".join(one_of))
        return value.strip()

    def number(self, field: str) -> int:
        """Positive whole number in `field`; InputError for anything else."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.wrong(field, value, "a whole number above 0")
        return value

    def texts(self, field: str, *, optional: bool = False) -> tuple[str, ...]:
        """Non-empty strings of the list in `field`, without repeats; InputError for anything else."""
        if optional and field not in self.values:
            return ()
        value = self.values.get(field)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, str) and item.strip() for item in value)
        ):
            raise self.wrong(field, value, "a list of texts")
        if len(set(value)) < len(value):
            raise self.wrong(field, value, "no item twice")
        return tuple(item.strip() for item in value)

    def flag(self, field: str) -> bool:
        """Boolean in `field`; False where it is missing, InputError for anything else."""
        value = self.values.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(field, value, "true or false")
        return value

    def only(self, fields: tuple[str, ...]) -> None:
        """Raise InputError for fields not in `fields`: a misspelt optional field would otherwise be ignored."""
        for field in self.values:
            if field not in fields:
                raise InputError(
                    f"{self.where}: unknown field", got=repr(field), expected="one of " + ", ".join(fields)
                )

    def wrong(self, field: str, got: object, expected: str) -> InputError:
        """Make the error about `field`, for the caller to raise: what was got, and what is expected."""
        shown = "nothing" if got is None else repr(got)
        return InputError(f"{self.where}, field '{field}'", got=shown, expected=expected)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml is ten times faster
    """SafeLoader that refuses a key written twice, of which plain YAML would keep the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field '{key.value}' twice in one entry", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def records(path: Path, *, name: str) -> tuple[Record, ...]:
    """Read the mappings in the YAML list at `path`; `name` is the field that names an entry in messages.

    Raises InputError for a missing file, a YAML slip (with its line), or a file that is no list of mappings.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path.name}", got=error.strerror, expected="a YAML file") from error
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.SequenceNode):
            raise InputError(path.name, got="no list", expected="a list of entries, each beginning with '- '")
        found = [(node.start_mark.line + 1, loader.construct_object(node, deep=True)) for node in root.value]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = " ".join((error.problem or error.context or "not YAML").split())
        raise InputError(f"{path.name} line {line}", got=what, expected="YAML") from error
    finally:
        loader.dispose()
    return tuple(_record(path.name, line, entry, name) for line, entry in found)


def _record(file: str, line: int, entry: object, name: str) -> Record:
    if not isinstance(entry, dict):
        raise InputError(
            f"{file} line {line}", got=repr(entry), expected=f"an entry with fields, the first being '{name}'"
        )
    return Record(entry, f"{file} line {line}, entry '{entry.get(name, '?')}'")


def part(record: Record, field: str, entry: object, name: str) -> Record:
    """Make a record of a mapping inside `record`, with its place in messages."""
    if not isinstance(entry, dict):
        raise record.wrong(field, entry, "fields and values")
    return Record(entry, f"{record.where}, {field} '{entry.get(name, '?')}'")
