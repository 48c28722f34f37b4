"""Writes run configurations."""

import pathlib

EXPERTS = "local"  # the expert strategy of every run that does not choose one


def toml_text(tables: dict) -> str:
    """TOML of one level of tables, as run configurations have."""
    lines = []
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {_value(value)}" for key, value in entries.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def write_config(path: pathlib.Path, tables: dict) -> pathlib.Path:
    path.write_text(toml_text(tables))
    return path


def merged(tables: dict, changes: dict) -> dict:
    """`tables` with the entries of `changes` put over it; an entry None takes a key away."""
    result = {table: dict(entries) for table, entries in tables.items()}
    for table, entries in changes.items():
        result.setdefault(table, {}).update(entries)
    return result


def _value(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
