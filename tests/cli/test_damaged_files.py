"""Files are untrusted: each kind of damage ends in exit status 4 and a message that names the file, and the tensor or byte."""

import json
import shutil
import struct

import numpy as np
import pytest
from harness.workspace import documents
from harness.megatron import write_corpus
from harness.program import Run
from harness.tiny_models import qwen3_moe_tensors, write_model, write_model_config

TENSOR = "model.layers.1.mlp.experts.3.up_proj.weight"


def change_header(path, change):
    """Rewrites a safetensors header in place of the old one."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


class TestModel:
    def refuse(self, engine, workspace, *words):
        message = engine.run("train", workspace.config(model={"path": "loaded", "weights": "load"}), code=4).err
        assert all(word in message for word in words), message

    def test_intact_is_accepted(self, engine, workspace):
        write_model(workspace.folder / "loaded", qwen3_moe_tensors())
        engine.train(workspace.config(model={"path": "loaded", "weights": "load"}))

    def test_missing_tensor(self, engine, workspace):
        tensors = qwen3_moe_tensors()
        del tensors[TENSOR]
        write_model(workspace.folder / "loaded", tensors)
        self.refuse(engine, workspace, "loaded", TENSOR)

    def test_unexpected_tensor(self, engine, workspace):
        write_model(workspace.folder / "loaded", {**qwen3_moe_tensors(), "model.layers.1.mlp.bonus.weight": np.ones(3, np.float32)})
        self.refuse(engine, workspace, "model.safetensors", "model.layers.1.mlp.bonus.weight")

    def test_misshapen_tensor(self, engine, workspace):
        write_model(workspace.folder / "loaded", {**qwen3_moe_tensors(), TENSOR: np.ones((32, 63), np.float32)})
        self.refuse(engine, workspace, "model.safetensors", TENSOR, "63", "64")

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_not_finite(self, engine, workspace, value):
        tensors = qwen3_moe_tensors()
        tensors[TENSOR][5, 7] = value
        write_model(workspace.folder / "loaded", tensors)
        self.refuse(engine, workspace, "model.safetensors", TENSOR)

    @pytest.mark.parametrize("damage", [
        lambda path: cut(path, 4),
        lambda path: cut(path, path.stat().st_size - 1000),
        lambda path: path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:]),
        lambda path: path.write_bytes(path.read_bytes()[:8] + b"!" + path.read_bytes()[9:]),
        lambda path: change_header(path, lambda header: header[TENSOR].update(data_offsets=[0, 1 << 50])),
        lambda path: change_header(path, lambda header: header[TENSOR].update(data_offsets=[64, 0])),
        lambda path: change_header(path, lambda header: header[TENSOR].update(shape=[-1, 64])),
        lambda path: change_header(path, lambda header: header[TENSOR].update(dtype="F7")),
        lambda path: path.unlink(),
    ], ids=["4 bytes", "short", "long header", "no JSON", "offsets beyond the end", "offsets backwards", "negative shape", "dtype", "none"])
    def test_damaged_file(self, engine, workspace, damage):
        damage(write_model(workspace.folder / "loaded", qwen3_moe_tensors()) / "model.safetensors")
        self.refuse(engine, workspace, "loaded")

    def test_index_names_a_missing_file(self, engine, workspace):
        folder = write_model(workspace.folder / "loaded", qwen3_moe_tensors())
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        weights = dict.fromkeys(qwen3_moe_tensors(), "model-00001-of-00002.safetensors")
        weights[TENSOR] = "model-00002-of-00002.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
        self.refuse(engine, workspace, "model-00002-of-00002.safetensors")

    def test_index_leads_outside(self, engine, workspace):
        folder = write_model(workspace.folder / "loaded", qwen3_moe_tensors())
        (folder / "model.safetensors").rename(workspace.folder / "outside.safetensors")
        weights = dict.fromkeys(qwen3_moe_tensors(), "../outside.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
        self.refuse(engine, workspace, "../outside.safetensors")

    @pytest.mark.parametrize("text", ["", "{", '{"model_type": "qwen3_moe"}', '{"model_type": "no_such_model"}'])
    def test_model_config(self, engine, workspace, text):
        write_model(workspace.folder / "loaded", qwen3_moe_tensors())
        (workspace.folder / "loaded/config.json").write_text(text)
        self.refuse(engine, workspace, "config.json")


class TestData:
    def refuse(self, engine, workspace, *words):
        message = engine.run("train", workspace.config(), code=4).err
        assert all(word in message for word in words), message

    @pytest.mark.parametrize("suffix", [".idx", ".bin"])
    def test_missing_file(self, engine, workspace, suffix):
        (workspace.folder / f"corpus{suffix}").unlink()
        self.refuse(engine, workspace, f"corpus{suffix}")

    def test_too_few_tokens(self, engine, workspace):
        write_corpus(workspace.folder / "corpus", [list(range(1, 33))])
        self.refuse(engine, workspace, "corpus", "32", "33")

    def test_token_outside_the_vocabulary(self, engine, workspace):
        write_corpus(workspace.folder / "corpus", [*documents(), [5, 160, 6]])
        self.refuse(engine, workspace, "corpus.bin", "160")

    def test_short_tokens(self, engine, workspace):
        cut(workspace.folder / "corpus.bin", 100)
        self.refuse(engine, workspace, "corpus")

    @pytest.mark.parametrize("damage", [
        lambda data: b"MMIDIDY" + data[7:],
        lambda data: data[:9] + struct.pack("<Q", 9) + data[17:],
        lambda data: data[:17] + b"\x63" + data[18:],
        lambda data: data[:18] + struct.pack("<Q", 1 << 61) + data[26:],
        lambda data: data[:34] + struct.pack("<i", -5) + data[38:],
        lambda data: data[:34] + struct.pack("<i", 1 << 30) + data[38:],
        lambda data: data[:40],
        lambda data: data[:5],
        lambda data: b"",
    ], ids=["magic", "version", "dtype", "count", "negative length", "length", "short", "shorter", "empty"])
    def test_lying_index(self, engine, workspace, damage):
        path = workspace.folder / "corpus.idx"
        path.write_bytes(damage(path.read_bytes()))
        self.refuse(engine, workspace, "corpus.idx")


class TestCheckpoint:
    @pytest.fixture
    def run(self, engine, workspace):
        return engine.train(workspace.config(checkpoint={"every": 1, "keep": 3}))

    @staticmethod
    def largest_file(checkpoint):
        return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)

    def flip(self, path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    def test_damaged_one_is_named_and_skipped(self, engine, workspace, run):
        losses = run.column("loss")
        newest = run.last_checkpoint()
        self.flip(self.largest_file(newest))
        outcome = engine.run("train", workspace.config(), "--resume")
        assert newest.name in outcome.err and self.largest_file(newest).name in outcome.err
        assert [line["loss"] for line in run.metrics()][-1] == losses[-1]

    def test_half_written_one_is_skipped(self, engine, workspace, run):
        newest = run.last_checkpoint()
        largest = self.largest_file(newest)
        cut(largest, largest.stat().st_size // 2)
        assert newest.name in engine.run("train", workspace.config(), "--resume").err

    def test_all_damaged(self, engine, workspace, run):
        for checkpoint in run.checkpoints():
            self.flip(self.largest_file(checkpoint))
        outcome = engine.run("train", workspace.config(), "--resume", "--set", "train.steps=5", code=4)
        assert all(checkpoint.name in outcome.err for checkpoint in run.checkpoints())

    @pytest.mark.parametrize("command", ["export", "inspect"])
    def test_export_and_inspect_refuse(self, engine, workspace, run, command):
        newest = run.last_checkpoint()
        largest = self.largest_file(newest)
        cut(largest, largest.stat().st_size // 2)
        arguments = ["--out", "out"] if command == "export" else []
        assert largest.name in engine.run(command, newest, *arguments, code=4).err

    def test_of_another_model(self, engine, workspace, run):
        write_model_config(workspace.folder / "model", moe_intermediate_size=48)
        outcome = engine.run("train", workspace.config(), "--resume", "--set", "train.steps=5", code=4)
        assert "step-000003" in outcome.err


class TestPlan:
    def test_rubbish(self, engine, workspace):
        (workspace.folder / "plan.toml").write_text("ranks = = 3\n")
        assert "plan.toml" in engine.run("train", workspace.config(engine={"plan": "plan.toml"}), code=4).err

    def test_missing(self, engine, workspace):
        assert "nowhere.toml" in engine.run("train", workspace.config(engine={"plan": "nowhere.toml"}), code=4).err

    def test_of_another_workload(self, engine, workspace):
        engine.run("plan", workspace.config(), "--out", "plan.toml")
        config = workspace.config(engine={"plan": "plan.toml"}, data={"sequence_length": 16})
        message = engine.run("train", config, code=4).err
        assert "plan.toml" in message and "allow_plan_mismatch" in message


def test_copied_run_resumes(engine, workspace):
    """A checkpoint holds no path of the place it was written in."""
    engine.train(workspace.config())
    shutil.copytree(workspace.folder / "run", workspace.folder / "copy")
    shutil.rmtree(workspace.folder / "run")
    engine.run("train", workspace.config(), "--resume", "--set", "train.steps=4", "--set", "output.dir=copy")
    assert Run(workspace.folder / "copy").column("step")[-1] == 4
