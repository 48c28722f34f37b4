"""The quick start's text: prepares it, and says how much of it the model has learnt.

Usage: quickstart_text.py prepare FOLDER | report FOLDER METRICS.JSONL
The text is the Jargon File 4.4.7, in the public domain, as Debian's package jargon-text installs it.
"""

import collections
import gzip
import json
import math
import pathlib
import sys

SOURCE = pathlib.Path("/usr/share/doc/jargon-text/jargon.txt.gz")
LAST_STEPS = 10


def prepare(folder: pathlib.Path):
    """Writes the prose: without tables, without indentation."""
    if not SOURCE.exists():
        sys.exit(f"quickstart: {SOURCE} is missing; run scripts/setup")
    lines = [line.strip() for line in gzip.decompress(SOURCE.read_bytes()).decode().splitlines()]
    text = "\n".join(line for line in lines if not any("─" <= character <= "╿" for character in line))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jargon.txt").write_text(text, encoding="utf-8")


def byte_entropy(folder: pathlib.Path) -> float:
    """Nats a byte that the best guess without any context would cost."""
    counts = collections.Counter(byte for path in sorted(folder.iterdir()) for byte in path.read_bytes())
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


def report(folder: pathlib.Path, metrics: pathlib.Path):
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()][-LAST_STEPS:]
    loss = sum(losses) / len(losses)
    entropy = byte_entropy(folder)
    print(f"loss       {loss:.3f} nats a byte, mean of the last {len(losses)} steps")
    print(f"entropy    {entropy:.3f} nats a byte without context: the model is {entropy - loss:.3f} better")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "prepare":
        prepare(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "report":
        report(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    else:
        sys.exit(__doc__)
