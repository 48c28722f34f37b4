"""Keys that pages name exist, and every setting of a plugin is explained on one. That configs/reference.toml lists exactly what there is, is tests/unit/core/runtime/reference_file_test.cpp."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("plugins/*/README.md")), *sorted(ROOT.glob("core/**/README.md"))]
OF_PLANS = {"state.retained_feed_forward", "state.retained_attention"}  # what a plan file has and a configuration sets by [ep]
FILES = {"cpp", "cu", "cuh", "h", "py", "toml", "json", "safetensors"}


def tables():
    """{table: its keys} of configs/reference.toml."""
    found, keys = {}, set()
    for line in (ROOT / "configs/reference.toml").read_text().splitlines():
        if table := re.fullmatch(r"\[(\w+)\]", line):
            keys = found.setdefault(table[1], set())
        elif key := re.match(r"(?:# )?(\w+) =", line):
            keys.add(key[1])
    return found


def test_keys_that_are_named_exist():
    known = tables()
    del known["model"]  # names of tensors look like its keys
    named = {}
    for page in PAGES:
        for table, key in re.findall(r"`\[?(\w+)(?:\.|\] )(\w+)(?: ?=[^`]*)?`", page.read_text()):
            if table in known and key not in FILES and f"{table}.{key}" not in OF_PLANS:
                named[table, key] = page.relative_to(ROOT)
    assert len(named) > 30
    assert [f"{page}: {table}.{key}" for (table, key), page in named.items() if key not in known[table]] == []


def test_every_setting_of_a_plugin_is_explained():
    words = {word for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text()) for word in re.findall(r"\w+", code)}
    known = tables()
    assert [f"{table}.{key}" for table in ("ep", "local", "offload") for key in sorted(known[table]) if key not in words] == []
