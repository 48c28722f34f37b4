"""One small run that tests of the program vary."""

import pathlib

import numpy as np
from harness.megatron import write_corpus
from harness.run_config import EXPERTS, merged, write_config
from harness.tiny_models import write_model_config

SEQUENCE_LENGTH = 32
GLOBAL_BATCH = 4


def documents(seed=0, count=40):
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 160, generator.integers(20, 120)).tolist() for _ in range(count)]


class Workspace:
    """A folder with a model configuration, token files, and configs of runs on them."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        write_model_config(folder / "model")
        write_corpus(folder / "corpus", documents())

    def tables(self) -> dict:
        return {
            "model": {"path": "model", "weights": "random", "seed": 3},
            "data": {"format": "megatron", "path": "corpus", "sequence_length": SEQUENCE_LENGTH},
            "train": {"steps": 3, "global_batch": GLOBAL_BATCH, "learning_rate": 1e-3},
            "precision": {"compute": "fp32"},
            "engine": {"device": "cpu", "ranks": 2, "experts": EXPERTS},
            "output": {"dir": "run"},
        }

    def config(self, name="run.toml", **changes) -> pathlib.Path:
        """Writes a config; `changes` are tables with entries to put over the small run's."""
        return write_config(self.folder / name, merged(self.tables(), changes))
