"""What a model's files decide and how they are read: tied embeddings, every fault at once, little memory."""

import json
import os
import subprocess

import numpy as np
import pytest
from harness.tiny_models import qwen3_moe_tensors, write_model, write_model_config
from safetensors import safe_open

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def load_from(workspace, tensors, **changes):
    """A config that trains one step from these tensors, without a rate."""
    write_model(workspace.folder / "loaded", tensors, **changes)
    return workspace.config(model={"path": "loaded", "weights": "load"}, train={"steps": 1, "learning_rate": 0.0})


def exported(engine, checkpoint):
    engine.run("export", checkpoint, "--out", "out", "--dtype", "fp32")
    with safe_open(engine.folder / "out/model.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    return tensors, json.loads((engine.folder / "out/config.json").read_text())


class TestTiedEmbeddings:
    """The tensors decide; config.json is corrected where it says otherwise."""

    def losses(self, engine, workspace, tensors, **changes):
        run = engine.train(load_from(workspace, tensors, **changes), "--set", "output.overwrite=true")
        return run, run.column("loss")

    def test_a_head_of_its_own_is_used(self, engine, workspace):
        tensors = qwen3_moe_tensors()
        _, wanted = self.losses(engine, workspace, tensors, tie_word_embeddings=False)
        run, losses = self.losses(engine, workspace, tensors, tie_word_embeddings=True)
        assert losses == wanted
        found, config = exported(engine, run.last_checkpoint())
        assert config["tie_word_embeddings"] is False
        assert found.keys() == tensors.keys() and all(np.array_equal(found[name], tensors[name]) for name in tensors)

    def test_without_one_the_embedding_is(self, engine, workspace):
        tensors = {name: tensor for name, tensor in qwen3_moe_tensors().items() if name != HEAD}
        _, wanted = self.losses(engine, workspace, tensors, tie_word_embeddings=True)
        _, untied = self.losses(engine, workspace, {**tensors, HEAD: tensors[EMBEDDING]}, tie_word_embeddings=False)
        assert untied == pytest.approx(wanted, rel=1e-6)
        config = load_from(workspace, tensors, tie_word_embeddings=False)
        outcome = engine.run("train", config, "--set", "output.overwrite=true")
        assert "the files hold none" in outcome.err
        found, written = exported(engine, engine.folder / "run/checkpoints/step-000001")
        assert written["tie_word_embeddings"] is True and found.keys() == tensors.keys()
        assert [json.loads(line)["loss"] for line in (engine.folder / "run/metrics.jsonl").read_text().splitlines()] == wanted
        # The corrected config.json is the checkpoint's own: the run goes on, and `inspect` counts alike.
        engine.run("train", config, "--resume", "--set", "train.steps=2")
        assert engine.run("inspect", "loaded", "--json").json["parameters"] == sum(tensor.size for tensor in tensors.values())

    def test_agreement_is_not_news(self, engine, workspace):
        assert "the head" not in engine.run("train", load_from(workspace, qwen3_moe_tensors())).err


def test_every_fault_is_named_at_once(engine, workspace):
    tensors = qwen3_moe_tensors()
    stem = "model.layers.1.mlp.experts"
    missing, misshapen, wrong_type = f"{stem}.0.up_proj.weight", f"{stem}.1.down_proj.weight", f"{stem}.2.gate_proj.weight"
    not_finite, infinite, unexpected = f"{stem}.3.up_proj.weight", "model.norm.weight", "model.layers.7.bonus.weight"
    del tensors[missing]
    tensors[misshapen] = np.ones((63, 32), np.float32)
    tensors[wrong_type] = np.ones((32, 64), np.int32)
    tensors[not_finite][4, 5] = np.nan
    tensors[infinite][3] = -np.inf
    tensors[unexpected] = np.ones(3, np.float32)
    message = engine.run("train", load_from(workspace, tensors), code=4).err
    assert "6 faults" in message
    for kind, name in (("missing", missing), ("misshapen", misshapen), ("wrong type", wrong_type), ("nan", not_finite), ("-inf", infinite), ("unexpected", unexpected)):
        assert any(kind in line and name in line for line in message.splitlines()), (kind, message)


def test_thousands_of_one_kind_hide_no_other(engine, workspace):
    tensors = {name: tensor for name, tensor in qwen3_moe_tensors().items() if ".experts." not in name or name.endswith("down_proj.weight")}
    tensors["surprise"] = np.ones(1, np.float32)
    message = engine.run("train", load_from(workspace, tensors), code=4).err
    assert "more of this kind" in message and "unexpected" in message and "surprise" in message


def fused(tensors, experts):
    """The same weights with the experts of a layer in one tensor."""
    gates = [name for name in tensors if name.endswith(".mlp.experts.0.gate_proj.weight")]
    result = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for stem in (name.removesuffix(".0.gate_proj.weight") for name in gates):
        of = lambda part: np.stack([tensors[f"{stem}.{expert}.{part}.weight"] for expert in range(experts)])  # noqa: E731
        result[f"{stem}.gate_up_proj"], result[f"{stem}.down_proj"] = np.concatenate([of("gate_proj"), of("up_proj")], axis=1), of("down_proj")
    return result


def test_tensors_that_several_threads_read(engine, workspace):
    """18 million elements are more than one thread takes: they come in as the experts one by one do, and a tensor with two faults is named once."""
    sizes = {"hidden_size": 512, "moe_intermediate_size": 1100, "num_hidden_layers": 1}
    apart = qwen3_moe_tensors(**sizes)
    together = fused(apart, 16)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert together[name].size > 17 << 20
    losses = []
    for folder, tensors in (("apart", apart), ("together", together)):
        write_model(workspace.folder / folder, tensors, **sizes)
        losses.append(engine.run("eval", workspace.config(model={"path": folder, "weights": "load"}, eval={"samples": 4}), "--json").json["loss"])
    assert losses[0] == losses[1]
    together[name][0, 0, 0] = together[name][15, 2199, 511] = np.nan
    write_model(workspace.folder / "together", together, **sizes)
    message = engine.run("eval", workspace.config(model={"path": "together", "weights": "load"}), code=4).err
    assert "1 fault" in message and message.count(name) == 1 and "element 0 " in message


def peak_mebibytes(engine, *arguments):
    """The largest resident set of a run."""
    with subprocess.Popen([engine.binary, *map(str, arguments)], cwd=engine.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


def test_loading_takes_no_memory_of_its_own(engine, workspace):
    """Files of 75 MiB are loaded with 48 MiB, threads and all, more than random weights take."""
    sizes = {"hidden_size": 256, "moe_intermediate_size": 512, "head_dim": 64}
    tensors = qwen3_moe_tensors(**sizes)
    folder = write_model(workspace.folder / "loaded", tensors, **sizes)
    write_model_config(workspace.folder / "random", **sizes)
    mebibytes = (folder / "model.safetensors").stat().st_size / (1 << 20)
    assert mebibytes > 70
    loaded = peak_mebibytes(engine, "eval", workspace.config(model={"path": "loaded", "weights": "load"}, eval={"samples": 4}))
    made = peak_mebibytes(engine, "eval", workspace.config(model={"path": "random"}, eval={"samples": 4}))
    assert loaded < made + 48, (loaded, made)
