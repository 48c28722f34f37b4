"""`oom plan` and admission: budgets are checked before anything is allocated."""

import re
import tomllib

import pytest
from harness.run_config import EXPERTS
from harness.tiny_models import write_model_config

TINY_PARAMETERS = 392832
QWEN3_30B_A3B = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960, "num_experts": 128,
    "num_experts_per_tok": 8, "initializer_range": 0.02}
QWEN3_30B_A3B_PARAMETERS = 30_532_122_624


def test_json(engine, workspace):
    plan = engine.run("plan", workspace.config(), "--json").json
    assert plan["fits"] is True and plan["experts"] == EXPERTS and plan["parameters"] == TINY_PARAMETERS
    assert plan["predicted_step_seconds"] > 0 and plan["bound_by"] and plan["plan"]
    assert len(plan["gpu"]) == 2 and len(plan["host"]) >= 1
    for place in plan["gpu"] + plan["host"]:
        assert 0 < place["peak_bytes"] <= place["budget_bytes"]
        assert place["classes"] and all(bytes_ >= 0 for bytes_ in place["classes"].values())
    assert [node["numa_node"] for node in plan["host"]] == list(range(len(plan["host"])))


def test_json_says_the_same_as_text(engine, workspace):
    config = workspace.config()
    seconds = engine.run("plan", config, "--json").json["predicted_step_seconds"]
    assert engine.run("plan", config, "--json").json["predicted_step_seconds"] == seconds
    assert engine.run("plan", config).out.strip() and engine.run("plan", config, "--explain").out.strip()


def test_host_holds_masters_and_moments(engine, workspace):
    plan = engine.run("plan", workspace.config(state={"resident": "none", "resident_ordinary": "none"}), "--json").json
    assert sum(node["peak_bytes"] for node in plan["host"]) >= 12 * TINY_PARAMETERS


def test_out_writes_a_plan_that_train_accepts(engine, workspace):
    engine.run("plan", workspace.config(), "--out", "plan.toml")
    assert tomllib.loads((workspace.folder / "plan.toml").read_text())
    engine.train(workspace.config(engine={"plan": "plan.toml"}))


def test_runs_nothing(engine, workspace):
    engine.run("plan", workspace.config())
    assert not (workspace.folder / "run").exists()


@pytest.mark.parametrize("budget", [{"host": "1MiB"}, {"gpu": "64KiB", "headroom": "0B"}], ids=lambda budget: next(iter(budget)))
class TestTooSmall:
    def test_plan(self, engine, workspace, budget):
        answer = engine.run("plan", workspace.config(budget=budget), "--json", code=3).json
        assert answer["fits"] is False and answer["why"] and answer["nearest"]

    def test_train(self, engine, workspace, budget):
        message = engine.run("train", workspace.config(budget=budget), code=3).err
        assert next(iter(budget)) in message.lower()
        assert any(unit in message for unit in ("MiB", "KiB", "GiB"))
        assert not (workspace.folder / "run/checkpoints").exists()


def test_budgets_are_obeyed(engine, workspace):
    """Half of what the plan for a roomy machine takes: another plan, or a refusal; never more than was given."""
    roomy = engine.run("plan", workspace.config(), "--json").json
    given = max(place["peak_bytes"] for place in roomy["gpu"]) * 3 // 4
    answer = engine.run("plan", workspace.config(budget={"gpu": f"{given}B", "headroom": "0B"}), "--json", code=None)
    assert answer.code in (0, 3)
    for place in answer.json.get("gpu", []):
        assert place["peak_bytes"] <= given


class TestMachineOneDoesNotHave:
    def config(self, workspace, host):
        write_model_config(workspace.folder / "large", **QWEN3_30B_A3B)
        return workspace.config(
            model={"path": "large"}, data={"sequence_length": 4096}, train={"global_batch": 8}, precision={"compute": "bf16"},
            engine={"device": "cuda", "ranks": 2}, budget={"gpu": "80GiB", "host": host})

    def test_fits(self, engine, workspace):
        plan = engine.run("plan", self.config(workspace, "480GiB"), "--json").json
        assert plan["parameters"] == QWEN3_30B_A3B_PARAMETERS
        assert all(place["peak_bytes"] <= place["budget_bytes"] == 80 << 30 for place in plan["gpu"])

    def test_does_not_fit(self, engine, workspace):
        assert engine.run("plan", self.config(workspace, "64GiB"), "--json", code=3).json["fits"] is False


class TestMachineOfAPlan:
    def plan_of(self, engine, workspace, machine=None):
        engine.run("plan", workspace.config(), "--out", "plan.toml")
        path = engine.folder / "plan.toml"
        if machine:
            path.write_text(re.sub(r"(?m)^machine = .*$", f'machine = "{machine}"', path.read_text()))
        return path

    def test_is_written_with_what_priced_it(self, engine, workspace):
        plan = tomllib.loads(self.plan_of(engine, workspace).read_text())
        assert "cores" in plan["machine"] and plan["calibration"] == "analytic"

    def test_another_one_is_refused(self, engine, workspace):
        self.plan_of(engine, workspace, "8 x NVIDIA H200 (139 GiB)")
        message = engine.run("train", workspace.config(engine={"plan": "plan.toml"}), code=4).err
        assert "plan.toml" in message and "machine" in message and "8 x NVIDIA H200" in message and "engine.allow_plan_mismatch=true" in message

    def test_differences_that_are_allowed_are_named(self, engine, workspace):
        self.plan_of(engine, workspace, "8 x NVIDIA H200 (139 GiB)")
        config = workspace.config(engine={"plan": "plan.toml", "allow_plan_mismatch": True, "ranks": 4}, train={"steps": 1})
        message = engine.run("train", config).err
        assert "8 x NVIDIA H200" in message and "ranks: the plan has 2, this run 4" in message

    def test_a_plan_for_elsewhere_names_none(self, engine, workspace):
        config = workspace.config(engine={"device": "cuda", "ranks": 32}, train={"global_batch": 32}, budget={"gpu": "80GiB", "host": "240GiB"})
        engine.run("plan", config, "--out", "plan.toml")
        assert "machine" not in tomllib.loads((engine.folder / "plan.toml").read_text())


def test_a_plugin_folder_that_is_not_there_is_named(engine, workspace):
    message = engine.run("plan", workspace.config(engine={"plugin_path": ["no/such/folder"]})).err
    assert "run.toml:" in message and "engine.plugin_path" in message and "no/such/folder" in message
