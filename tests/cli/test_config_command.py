"""`oom config` and every way a config can be wrong: exit status 2, before anything starts, with place, key, value and cure."""

import re

import pytest
from harness.program import REPOSITORY

TABLES = ["model", "data", "train", "precision", "engine", "budget", "state", "transfer", "local", "offload", "checkpoint", "output"]


def place_of(path, text):
    """`file:line:` of the first line that gives the key `text`."""
    number = 1 + next(i for i, line in enumerate(path.read_text().splitlines()) if re.match(rf"\[?{re.escape(text)}\]?( =|$)", line))
    return f"{path.name}:{number}:"


def test_prints_every_default(oom, workspace):
    """Tables of plugins that are not in use are there too."""
    resolved = oom.run("config", workspace.config()).toml
    assert set(TABLES) <= set(resolved)
    assert resolved["train"]["betas"] == [0.9, 0.999] and resolved["train"]["eps"] == 1e-8
    assert resolved["data"]["documents"] == "joined" and resolved["transfer"]["windows"] == 2
    assert resolved["checkpoint"] == {**resolved["checkpoint"], "every": 0, "at_end": True, "keep": 2}


def test_keeps_what_was_given(oom, workspace):
    resolved = oom.run("config", workspace.config()).toml
    for table, entries in workspace.tables().items():
        assert {key: resolved[table][key] for key in entries} == entries


def test_what_it_prints_resolves_to_itself(oom, workspace):
    first = oom.run("config", workspace.config()).out
    again = workspace.folder / "again.toml"
    again.write_text(first)
    assert oom.run("config", again).out == first


@pytest.mark.parametrize("assignment, table, key, value", [
    ("train.steps=7", "train", "steps", 7),
    ("train.learning_rate=2e-4", "train", "learning_rate", 2e-4),
    ("train.betas=[0.8, 0.95]", "train", "betas", [0.8, 0.95]),
    ("engine.experts=local", "engine", "experts", "local"),
    ('engine.experts="local"', "engine", "experts", "local"),
    ("checkpoint.at_end=false", "checkpoint", "at_end", False),
    ("output.dir=runs/a=b", "output", "dir", "runs/a=b"),
])
def test_set(oom, workspace, assignment, table, key, value):
    assert oom.run("config", workspace.config(), "--set", assignment).toml[table][key] == value


def test_later_set_wins(oom, workspace):
    resolved = oom.run("config", workspace.config(), "--set", "train.steps=7", "--set", "train.steps=8").toml
    assert resolved["train"]["steps"] == 8


@pytest.mark.parametrize("assignment", ["train.stepz=7", "trian.steps=7", "steps=7", "train.steps", "train.steps=many"])
def test_wrong_set(oom, workspace, assignment):
    outcome = oom.run("config", workspace.config(), "--set", assignment, code=2)
    assert assignment.split("=")[0] in outcome.err


@pytest.mark.parametrize("table, entries, key, cure", [
    ("offload", {"keep_boundary": "all"}, "offload.keep_boundary", "keep_boundaries"),
    ("train", {"learning_rat": 1.0}, "train.learning_rat", "learning_rate"),
    pytest.param("ep", {"routing_chunk": -1}, "ep.routing_chunk", "-1", marks=pytest.mark.plugin("ep")),
    ("local", {"delivery": "half"}, "local.delivery", "shard"),
    ("train", {"steps": "many"}, "train.steps", "many"),
    ("train", {"betas": [0.9]}, "train.betas", ""),
    ("train", {"betas": [0.9, 1.5]}, "train.betas", "1.5"),
    ("data", {"format": "parquet"}, "data.format", "megatron"),
    ("data", {"documents": "apart"}, "data.documents", "isolated"),
    ("train", {"schedule": "linear"}, "train.schedule", "cosine"),
    ("precision", {"compute": "fp8"}, "precision.compute", "bf16"),
    ("budget", {"gpu": "80 bananas"}, "budget.gpu", "80 bananas"),
    ("data", {"sequence_length": 0}, "data.sequence_length", "0"),
])
def test_wrong_entry(oom, workspace, table, entries, key, cure):
    config = workspace.config(**{table: entries})
    message = oom.run("config", config, code=2).err
    assert re.search(re.escape(place_of(config, next(iter(entries)))) + r"\d+", message), message
    assert key in message and cure in message


def test_unknown_table(oom, workspace):
    message = oom.run("config", workspace.config(trian={"steps": 1}), code=2).err
    assert "trian" in message and "train" in message.replace("trian", "")


def test_all_faults_at_once(oom, workspace):
    message = oom.run("config", workspace.config(train={"stepz": 1}, local={"delivery": "half"}, data={"format": "parquet"}), code=2).err
    assert all(key in message for key in ("train.stepz", "local.delivery", "data.format"))


def test_no_toml(oom, workspace):
    config = workspace.folder / "bad.toml"
    config.write_text("[train]\nsteps = = 3\n")
    assert "bad.toml:2" in oom.run("config", config, code=2).err


def test_no_config(oom, workspace):
    assert "nowhere.toml" in oom.run("config", "nowhere.toml", code=2).err


@pytest.mark.parametrize("changes, words", [
    ({"train": {"global_batch": 5}}, ["global_batch", "5", "ranks", "2"]),
    pytest.param({"train": {"global_batch": 6}, "engine": {"ranks": 3, "experts": "ep"}}, ["ranks", "3", "16"], marks=pytest.mark.plugin("ep")),
])
@pytest.mark.parametrize("command", ["plan", "train"])
def test_rules_across_fields(engine, workspace, command, changes, words):
    message = engine.run(command, workspace.config(**changes), code=2).err
    assert all(word in message for word in words), message


@pytest.mark.parametrize("config", sorted((REPOSITORY / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_configs_of_the_repository_resolve(oom, config):
    oom.run("config", config)
