"""The oracle: reference results and the files they come from, each made once in a session."""

import functools
import pathlib

import pytest
import torch
from harness.megatron import write_corpus
from harness.run_config import EXPERTS, merged, write_config
from oracle.agreement import Expected
from oracle.corpora import CORPORA
from oracle.models import FAMILY_LEARNING_RATES, FAMILY_SEEDS, force_routing, make_model
from oracle.reference import Training, train

torch.set_num_threads(1)

ROUTING = {
    "": None,
    "experts without tokens": functools.partial(force_routing, shunned=(0, 5, 15)),
    "all tokens to one expert": functools.partial(force_routing, favoured=(3,)),
    "nothing for the second of two ranks": functools.partial(force_routing, shunned=range(8, 16)),
    "nothing for the second of four ranks": functools.partial(force_routing, shunned=range(4, 8)),
}


def frozen(value):
    """Lists as tuples and tables as tuples of pairs, to be part of a key."""
    if isinstance(value, dict):
        return tuple((key, frozen(entry)) for key, entry in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def thawed(value):
    if not isinstance(value, tuple):
        return value
    if value and all(isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) for entry in value):
        return {key: thawed(entry) for key, entry in value}
    return [thawed(entry) for entry in value]


class Oracle:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    @functools.cache
    def model(self, family="qwen3_moe", routing="", changes=()):
        return make_model(family, FAMILY_SEEDS.get(family, 2), ROUTING[routing], **(thawed(changes) or {}))

    @functools.cache
    def model_folder(self, family="qwen3_moe", routing="", changes=(), fused=False, shard_size="5GB") -> pathlib.Path:
        folder = self.folder / f"model{len(list(self.folder.iterdir()))}"
        self.model(family, routing, changes).save_pretrained(folder, save_original_format=not fused, max_shard_size=shard_size)
        return folder

    @functools.cache
    def corpus(self, name="mixed") -> pathlib.Path:
        return write_corpus(self.folder / name, CORPORA[name])

    @functools.cache
    def expected(self, training: Training, family="qwen3_moe", routing="", changes=(), corpus="mixed") -> Expected:
        model, documents = self.model(family, routing, changes), CORPORA[corpus]
        result = train(model, documents, training)
        if training.compute != "fp32":
            return Expected(result, [])
        return Expected(result, [train(model, documents, training, noise=1e-7, noise_seed=seed) for seed in (1, 2)])

    def config(self, folder: pathlib.Path, training: Training, family="qwen3_moe", routing="", changes=(), corpus="mixed",
               model_folder=None, tables=None) -> pathlib.Path:
        """The engine's config of the same run, on the CPU device."""
        base = merged(training.tables(), {
            "model": {"path": model_folder or self.model_folder(family, routing, changes), "weights": "load"},
            "data": {"format": "megatron", "path": self.corpus(corpus)},
            "engine": {"device": "cpu", "ranks": 1, "experts": EXPERTS},
            "output": {"dir": "run"}})
        return write_config(folder / "run.toml", merged(base, tables or {}))


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    return Oracle(tmp_path_factory.mktemp("oracle"))


def training_of(family: str, **settings) -> Training:
    """Settings with the learning rate at which the family's tiny model is well conditioned."""
    return Training(**{"learning_rate": FAMILY_LEARNING_RATES.get(family, 1e-3), **settings})
