"""Token files for training: documents in, PREFIX.bin, PREFIX.idx and PREFIX.mask out. scripts/make_tokens is the way in."""


class InputError(Exception):
    """Something is wrong with what the user gave; the message says where and what to do."""
