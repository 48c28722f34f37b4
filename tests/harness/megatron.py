"""Writes token files in Megatron's indexed format: PREFIX.bin holds the tokens, PREFIX.idx the documents."""

import pathlib
import struct

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
DTYPE_CODES = {np.dtype(np.uint8): 1, np.dtype(np.int8): 2, np.dtype(np.int16): 3, np.dtype(np.int32): 4,
               np.dtype(np.int64): 5, np.dtype(np.uint16): 8}


def write_corpus(prefix: pathlib.Path, documents, dtype=np.uint16) -> pathlib.Path:
    """Writes `documents`, sequences of token ids, one sequence each; returns the prefix."""
    dtype = np.dtype(dtype)
    arrays = [np.asarray(document, dtype=dtype) for document in documents]
    lengths = np.array([len(array) for array in arrays], dtype=np.int32)
    pointers = np.zeros(len(arrays), dtype=np.int64)
    pointers[1:] = np.cumsum(lengths[:-1], dtype=np.int64) * dtype.itemsize
    with open(f"{prefix}.bin", "wb") as file:
        for array in arrays:
            file.write(array.tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.write(MAGIC)
        file.write(struct.pack("<QB", 1, DTYPE_CODES[dtype]))
        file.write(struct.pack("<QQ", len(arrays), len(arrays) + 1))
        file.write(lengths.tobytes())
        file.write(pointers.tobytes())
        file.write(np.arange(len(arrays) + 1, dtype=np.int64).tobytes())
    return prefix
