"""Writes PREFIX.bin, PREFIX.idx and PREFIX.mask, and reads them back. Memory does not grow with the data.

PREFIX.bin and PREFIX.idx are Megatron's indexed format, PREFIX.mask is described in docs/data.md.
"""

import pathlib
import struct
import zlib

import numpy as np

from token_files import InputError

MAGIC = b"MMIDIDX\x00\x00"
DTYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}
MASK_MAGIC = b"OOMMASK\x00"
CHUNK = 1 << 20


def token_dtype(vocabulary: int) -> np.dtype:
    """The smallest type of the format that holds every id."""
    return np.dtype(np.uint16) if vocabulary <= 1 << 16 else np.dtype(np.int32)


class TokenWriter:
    """Everything goes to temporary files beside the prefix, which `finish` renames: half-made token files are never there."""

    def __init__(self, prefix: pathlib.Path, dtype: np.dtype, masks: bool):
        self.prefix, self.dtype = prefix, dtype
        self.sequences = self.documents = self.tokens = self.counted = 0
        self.checksum = 0
        self._names = [".bin", ".idx", *([".mask"] if masks else [])]
        self._files = {name: open(self._temporary(name), "w+b") for name in [*self._names, ".lengths", ".documents"]}
        self._bits = np.zeros(0, dtype=bool)  # of the last, unfinished byte
        if masks:
            self._files[".mask"].write(struct.pack("<8sQQ", MASK_MAGIC, 1, 0))

    def _temporary(self, suffix: str) -> pathlib.Path:
        return self.prefix.with_name(f"{self.prefix.name}{suffix}.tmp")

    def append(self, encoded):
        data = encoded.tokens.astype(self.dtype).tobytes()
        self.checksum = zlib.crc32(data, self.checksum)
        self._files[".bin"].write(data)
        self._files[".lengths"].write(encoded.lengths.astype(np.int32).tobytes())
        ends = self.sequences + 1 + np.flatnonzero(encoded.ends_document)
        self._files[".documents"].write(ends.astype(np.int64).tobytes())
        self.sequences += len(encoded.lengths)
        self.documents += len(ends)
        self.tokens += len(encoded.tokens)
        if ".mask" in self._files:
            self.counted += int(encoded.counts.sum())
            bits = np.concatenate([self._bits, encoded.counts])
            whole = len(bits) // 8 * 8
            self._files[".mask"].write(np.packbits(bits[:whole], bitorder="little").tobytes())
            self._bits = bits[whole:]

    def finish(self):
        index = self._files[".idx"]
        index.write(MAGIC + struct.pack("<QBQQ", 1, DTYPE_CODES[self.dtype], self.sequences, self.documents + 1))
        for lengths in self._read_back(".lengths", np.int32):
            index.write(lengths.tobytes())
        position = 0
        for lengths in self._read_back(".lengths", np.int32):
            ends = position + np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
            index.write((ends - lengths.astype(np.int64) * self.dtype.itemsize).tobytes())
            position = int(ends[-1])
        index.write(struct.pack("<q", 0))
        for documents in self._read_back(".documents", np.int64):
            index.write(documents.tobytes())
        if ".mask" in self._files:
            mask = self._files[".mask"]
            mask.write(np.packbits(self._bits, bitorder="little").tobytes())
            mask.seek(16)
            mask.write(struct.pack("<Q", self.tokens))
        # The index last: without it there are no token files.
        for name in [".mask", ".bin", ".idx"]:
            if name in self._files:
                self._files[name].close()
                self._temporary(name).replace(f"{self.prefix}{name}")
        self.abandon()

    def abandon(self):
        """Removes what is left of temporary files."""
        for name, file in self._files.items():
            file.close()
            self._temporary(name).unlink(missing_ok=True)

    def _read_back(self, suffix: str, dtype):
        file = self._files[suffix]
        file.seek(0)
        while data := file.read(CHUNK * np.dtype(dtype).itemsize):
            yield np.frombuffer(data, dtype=dtype)


def outputs(prefix: pathlib.Path) -> list[pathlib.Path]:
    return [pathlib.Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx", ".mask")]


def verify(writer: TokenWriter, vocabulary: int):
    """Reads the finished files with no help of what wrote them, and compares with what was meant."""
    prefix, dtype = writer.prefix, writer.dtype

    def check(right, what):
        if not right:
            raise InputError(f"{prefix}: reading back failed: {what}. The disk, or this program, is at fault")

    checksum = largest = count = 0
    with open(f"{prefix}.bin", "rb") as file:
        while data := file.read(CHUNK * dtype.itemsize):
            tokens = np.frombuffer(data, dtype=dtype)
            checksum, largest, count = zlib.crc32(data, checksum), max(largest, int(tokens.max())), count + len(tokens)
            check(int(tokens.min()) >= 0, "negative tokens")
    check(count == writer.tokens and checksum == writer.checksum, f"{count} tokens of {writer.tokens}, or others")
    check(largest < vocabulary, f"token {largest} of a vocabulary of {vocabulary}")

    index = np.memmap(f"{prefix}.idx", dtype=np.uint8, mode="r")
    magic, version, code, sequences, entries = struct.unpack("<9sQBQQ", index[:34].tobytes())
    check((magic, version, code, sequences, entries) == (MAGIC, 1, DTYPE_CODES[dtype], writer.sequences, writer.documents + 1), "the index's header")
    check(len(index) == 34 + 12 * sequences + 8 * entries, "the index's size")
    position = 0
    for first in range(0, sequences, CHUNK):
        last = min(first + CHUNK, sequences)
        lengths = np.frombuffer(index[34 + 4 * first:34 + 4 * last].tobytes(), np.int32).astype(np.int64)
        at = 34 + 4 * sequences
        pointers = np.frombuffer(index[at + 8 * first:at + 8 * last].tobytes(), np.int64)
        begins = position + (np.cumsum(lengths) - lengths) * dtype.itemsize
        check(bool((pointers == begins).all()), "the index's pointers")
        position += int(lengths.sum()) * dtype.itemsize
    check(position == count * dtype.itemsize, "the index's lengths")
    previous, at = 0, 34 + 12 * sequences
    for first in range(0, entries, CHUNK):
        documents = np.frombuffer(index[at + 8 * first:at + 8 * min(first + CHUNK, entries)].tobytes(), np.int64)
        check(int(documents[0]) >= previous and bool((np.diff(documents) >= 0).all()), "the index's documents")
        previous = int(documents[-1])
    check(previous == sequences, "the index's last document")

    if pathlib.Path(f"{prefix}.mask").exists():
        counted = 0
        with open(f"{prefix}.mask", "rb") as file:
            check(struct.unpack("<8sQQ", file.read(24)) == (MASK_MAGIC, 1, writer.tokens), "the mask's header")
            size = 0
            while data := file.read(CHUNK):
                counted += int(np.unpackbits(np.frombuffer(data, np.uint8)).sum())
                size += len(data)
        check(size == (writer.tokens + 7) // 8 and counted == writer.counted, "the mask's bits")
