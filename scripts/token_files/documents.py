"""Reads documents out of JSON lines and text files, one at a time and long ones in pieces."""

import gzip
import json
import pathlib
from dataclasses import dataclass, field

from token_files import InputError

PIECE_CHARACTERS = 1 << 18   # a longer document is tokenised in pieces of about this size
LONGEST_LINE = 1 << 30       # bytes; a longer line is no line
READ_BYTES = 1 << 18
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")


@dataclass
class Piece:
    """A stretch of a document: text, and which parts of it are targets of training."""
    text: str
    place: str                                  # "corpus.jsonl:17", for messages
    begins_document: bool = True
    ends_document: bool = True
    segments: list = field(default_factory=list)  # [(characters, trained)]; empty: all of it is trained


@dataclass
class Keys:
    """Which keys of a JSON line hold the document."""
    text: str = "text"
    prompt: str | None = None      # masked, before `completion`
    completion: str | None = None
    segments: str | None = None    # a list of {"text": ..., "train": true | false}

    @property
    def masks(self) -> bool:
        return self.prompt is not None or self.segments is not None


def find_files(paths) -> list[pathlib.Path]:
    """The files that `paths` name; of a folder all below it, by path, without hidden ones."""
    files = []
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts))
            if not inside:
                raise InputError(f"{path}: no files in this folder")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or folder")
    return files


def read_pieces(path: pathlib.Path, keys: Keys, advance=lambda bytes_: None):
    """Yields the pieces of a file's documents. `advance` is told of bytes read, as they lie on the disk."""
    inner = path.with_suffix("") if path.suffix == ".gz" else path
    with open(path, "rb") as raw:
        position = 0

        def tell():
            nonlocal position
            advance(raw.tell() - position)
            position = raw.tell()

        file = gzip.open(raw) if path.suffix == ".gz" else raw
        try:
            if inner.suffix in JSON_SUFFIXES:
                yield from _json_lines(file, path, keys, tell)
            elif keys.masks:
                raise InputError(f"{path}: prompts are masked in JSON lines alone, and this name does not end in {' or '.join(JSON_SUFFIXES)}")
            else:
                yield from _text(file, path, tell)
        except (gzip.BadGzipFile, EOFError) as error:
            raise InputError(f"{path}: damaged gzip file: {error}") from error
        tell()


def _json_lines(file, path, keys: Keys, tell):
    for number in range(1, 1 << 62):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise InputError(f"{path}:{number}: a line of more than {LONGEST_LINE} bytes")
        if number % 64 == 0:
            tell()
        if not line.strip():
            continue
        place = f"{path}:{number}"
        segments = _segments(_record(line, place), keys, place)
        for text, _ in segments:
            _check_text(text, place)
        text = "".join(text for text, _ in segments)
        if not text:
            continue
        if keys.masks:
            yield Piece(text, place, segments=[(len(part), trained) for part, trained in segments])
        else:
            yield from _cut(text, place)


def _record(line: bytes, place: str) -> dict:
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not valid JSON: {error}. Each line must hold one object") from error
    if not isinstance(record, dict):
        raise InputError(f"{place}: must hold a JSON object; got {type(record).__name__}")
    return record


def _segments(record: dict, keys: Keys, place: str) -> list[tuple[str, bool]]:
    """The record's text in parts, and for each whether it is trained."""
    def text_of(key):
        if key not in record:
            raise InputError(f"{place}: key '{key}' is missing; keys here: {', '.join(record) or 'none'}. Choose with --key, --prompt-key and --completion-key, or --segments-key")
        if not isinstance(record[key], str):
            raise InputError(f"{place}: {key}: must be text; got {json.dumps(record[key])[:60]}")
        return record[key]

    if keys.prompt is not None:
        return [(text_of(keys.prompt), False), (text_of(keys.completion), True)]
    if keys.segments is None:
        return [(text_of(keys.text), True)]
    parts = record.get(keys.segments)
    if not isinstance(parts, list):
        raise InputError(f"{place}: {keys.segments}: must be a list of objects; got {json.dumps(parts)[:60]}")
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str) or not isinstance(part.get("train"), bool):
            raise InputError(f'{place}: {keys.segments}: each must be {{"text": "...", "train": true or false}}; got {json.dumps(part)[:80]}')
    return [(part["text"], part["train"]) for part in parts]


def _check_text(text: str, place: str):
    """JSON can spell half a character, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: an unpaired surrogate \\u{ord(text[error.start]):04x} at character {error.start}") from error


def _text(file, path, tell):
    """A text file is one document. It is read and cut as it comes, so that its size does not matter."""
    held, offset, first = b"", 0, True
    while True:
        more = file.read(READ_BYTES)
        tell()
        held += more
        try:
            text, used = _decode(held, last=not more)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 at byte {offset + error.start}") from error
        if not more:
            if text or not first:
                yield Piece(text, str(path), begins_document=first)
            return
        cut = _cut_at(text, len(text)) if len(text) >= PIECE_CHARACTERS else 0
        if cut:
            yield Piece(text[:cut], str(path), begins_document=first, ends_document=False)
            first = False
            used = len(text[:cut].encode())
            held, offset = held[used:], offset + used


def _decode(data: bytes, last: bool) -> tuple[str, int]:
    """As much of `data` as is whole characters, and its bytes."""
    try:
        return data.decode(), len(data)
    except UnicodeDecodeError as error:
        if last or error.start < len(data) - 3 or error.reason != "unexpected end of data":
            raise
        return data[:error.start].decode(), error.start


def _cut(text: str, place: str):
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        end = _cut_at(text, begin + PIECE_CHARACTERS, begin)
        yield Piece(text[begin:end], place, begins_document=begin == 0, ends_document=False)
        begin = end
    yield Piece(text[begin:], place, begins_document=begin == 0)


def _cut_at(text: str, end: int, begin: int = 0) -> int:
    """Where to cut before `end`: behind a line, else before a space, where tokenisers begin a word; else at `end`."""
    line = text.rfind("\n", begin + 1, end)
    if line > begin:
        return line + 1
    space = text.rfind(" ", begin + 1, end)
    return space if space > begin else end
