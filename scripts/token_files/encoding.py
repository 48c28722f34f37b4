"""From text to token ids, in this process or in several, in the order of the documents whatever their number."""

import collections
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from token_files import InputError

BATCH_CHARACTERS = 1 << 20
_encoder = None  # of a worker process


@dataclass
class Settings:
    """What makes ids out of text; plain data, so that workers can be given it."""
    tokenizer: pathlib.Path       # tokenizer.json
    begin_of_document: int | None  # id put before each document
    end_of_document: int | None   # id put behind each document
    masks: bool


@dataclass
class Encoded:
    """Pieces of documents as ids laid end to end."""
    tokens: np.ndarray            # int64
    lengths: np.ndarray           # int32, by piece
    ends_document: np.ndarray     # bool, by piece
    counts: np.ndarray | None     # bool, by token: a target of training; None: all are
    characters: int


class Encoder:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.tokenizer = load_tokenizer(settings.tokenizer)

    def encode(self, pieces) -> Encoded:
        settings = self.settings
        # The fast one, of tokenizers 0.20 and later, finds no offsets.
        encode = self.tokenizer.encode_batch if settings.masks else getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)
        tokens, lengths, counts = [], [], []
        for piece, encoding in zip(pieces, encode([piece.text for piece in pieces], add_special_tokens=False), strict=True):
            before = [settings.begin_of_document] if piece.begins_document and settings.begin_of_document is not None else []
            behind = [settings.end_of_document] if piece.ends_document and settings.end_of_document is not None else []
            tokens.append(np.asarray(before + encoding.ids + behind, dtype=np.int64))
            lengths.append(len(tokens[-1]))
            if settings.masks:
                first, last = (piece.segments[0][1], piece.segments[-1][1]) if piece.segments else (True, True)
                counts.append(np.concatenate([np.full(len(before), first), _counted(piece, encoding), np.full(len(behind), last)]))
        return Encoded(np.concatenate(tokens), np.asarray(lengths, dtype=np.int32), np.array([piece.ends_document for piece in pieces]),
                       np.concatenate(counts) if settings.masks else None, sum(len(piece.text) for piece in pieces))


def _counted(piece, encoding) -> np.ndarray:
    """For each token whether it holds a character that is trained."""
    if not piece.segments:
        return np.ones(len(encoding.ids), dtype=bool)
    trained = np.concatenate([np.full(length, flag) for length, flag in piece.segments])
    before = np.concatenate([[0], np.cumsum(trained)])
    offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    return before[offsets[:, 1]] > before[offsets[:, 0]]


def load_tokenizer(path: pathlib.Path):
    try:
        import tokenizers
    except ImportError as error:
        raise InputError("the Python package tokenizers is missing; cure: pip install tokenizers") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"{path}: no tokenizer.json of Hugging Face: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def vocabulary_size(tokenizer) -> int:
    """One above the largest id: ids may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def find_token(tokenizer, option: str, wanted: str) -> int | None:
    """The id of a token that the user names; "none": none."""
    if wanted == "none":
        return None
    token = tokenizer.token_to_id(wanted)
    if token is None:
        special = sorted(str(added.content) for added in tokenizer.get_added_tokens_decoder().values())
        raise InputError(f"{option}: the tokenizer has no token '{wanted}'; its added tokens: {', '.join(special[:20]) or 'none'}")
    return token


def default_end_of_document(folder: pathlib.Path) -> str:
    """The end-of-sequence token that tokenizer_config.json names."""
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_text()).get("eos_token") if config.is_file() else None
    wanted = named.get("content") if isinstance(named, dict) else named
    if wanted is None:
        raise InputError(f"the end-of-document token is not known: {config} {'names none' if config.is_file() else 'is missing'}. Give --end-of-document '<|endoftext|>', or whatever the model uses, or none")
    return wanted


def batches(pieces):
    """Pieces in groups of a bounded number of characters, that is of bounded memory."""
    group, characters = [], 0
    for piece in pieces:
        group.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def encode_all(pieces, settings: Settings, workers: int):
    """Yields Encoded groups in the order of the documents. With several workers at most two groups a worker are under way."""
    if workers == 1:
        encoder = Encoder(settings)
        for group in batches(pieces):
            yield encoder.encode(group)
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes instead of threads
    context = multiprocessing.get_context("spawn")
    under_way = collections.deque()
    with concurrent.futures.ProcessPoolExecutor(workers, context, _start_worker, (settings,)) as pool:
        try:
            for group in batches(pieces):
                under_way.append(pool.submit(_encode_in_worker, group))
                if len(under_way) > 2 * workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise InputError("a worker process died, perhaps for lack of memory; use fewer --workers") from error
        finally:
            for future in under_way:
                future.cancel()


def _start_worker(settings: Settings):
    global _encoder
    _encoder = Encoder(settings)


def _encode_in_worker(pieces) -> Encoded:
    return _encoder.encode(pieces)
