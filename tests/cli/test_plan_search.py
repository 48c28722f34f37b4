"""What `oom plan` chooses, for every family, on GPUs that are not here."""

import pytest
from harness.tiny_models import TINY_CONFIGS, write_model_config

# Wide enough that parameters cost time and not only launches.
WIDE = {"hidden_size": 1024, "moe_intermediate_size": 512, "intermediate_size": 512, "num_experts": 64, "num_local_experts": 64}


@pytest.fixture
def planned(engine, workspace):
    """Plans a family's small model for two GPUs; returns the answer."""

    def plan(family="qwen3_moe", code=0, **changes):
        write_model_config(workspace.folder / family, family, **{key: size for key, size in WIDE.items() if key in TINY_CONFIGS[family]})
        tables = {"model": {"path": family}, "data": {"sequence_length": 64}, "train": {"global_batch": 4}, "precision": {"compute": "bf16"},
                  "engine": {"device": "cuda", "ranks": 2, "experts": "ep"}, "budget": {"gpu": "40GiB", "host": "400GiB", "headroom": "0B"}}
        for table, entries in changes.items():
            tables.setdefault(table, {}).update(entries)
        return engine.run("plan", workspace.config(**tables), "--json", code=code).json

    return plan


def gpu_peak(plan):
    return max(gpu["peak_bytes"] for gpu in plan["gpu"])


@pytest.mark.parametrize("family", TINY_CONFIGS)
class TestEveryFamily:
    def test_all_state_is_resident_where_it_fits(self, planned, family):
        assert planned(family)["plan"]["state"]["resident_layers"] == list(range(TINY_CONFIGS[family]["num_hidden_layers"]))

    def test_budgets_hold_to_the_byte(self, planned, family):
        none = gpu_peak(planned(family, state={"resident": "none", "resident_ordinary": "none"}))
        everything = gpu_peak(planned(family, state={"resident": "all", "resident_ordinary": "all"}))
        assert none < everything
        middle = planned(family, budget={"gpu": f"{(none + everything) // 2}B"})
        exact = planned(family, budget={"gpu": f"{gpu_peak(middle)}B"})
        assert gpu_peak(exact) <= gpu_peak(middle) and exact["predicted_step_seconds"] <= 1.005 * middle["predicted_step_seconds"]
        less = planned(family, budget={"gpu": f"{gpu_peak(middle) - 1}B"}, code=None)
        assert not less["fits"] or gpu_peak(less) < gpu_peak(middle)
        assert not planned(family, budget={"gpu": f"{600 << 20}B"}, code=3)["fits"]

    def test_larger_budgets_are_not_slower(self, planned, family):
        none = gpu_peak(planned(family, state={"resident": "none", "resident_ordinary": "none"}))
        everything = gpu_peak(planned(family, state={"resident": "all", "resident_ordinary": "all"}))
        seconds = [planned(family, budget={"gpu": f"{none + (everything - none) * part // 4}B"})["predicted_step_seconds"] for part in range(5)]
        assert all(later <= 1.005 * earlier for earlier, later in zip(seconds, seconds[1:])), seconds


def test_each_strategy_wins_a_workload(engine, workspace):
    """Workloads change, costs never: few tokens travel to their experts, many have the experts brought to them."""
    write_model_config(workspace.folder / "wide", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=4, num_attention_heads=32,
                       num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8)
    chosen = {}
    for length, batch in ((64, 2), (4096, 16)):
        config = workspace.config(model={"path": "wide"}, data={"sequence_length": length}, train={"global_batch": batch}, precision={"compute": "bf16"},
                                  engine={"device": "cuda", "ranks": 2, "experts": "auto"}, budget={"gpu": "140GiB", "host": "400GiB"})
        plan = engine.run("plan", config, "--json").json
        chosen[length * batch] = plan["experts"]
        others = [other for other in plan["others"] if other["difference"].startswith("experts ")]
        assert len(others) == 1 and others[0]["predicted_step_seconds"] > plan["predicted_step_seconds"]
    assert chosen == {128: "ep", 65536: "local"}


def test_what_lost_is_told(engine, workspace, planned):
    plan = planned(budget={"gpu": "3GiB"})
    assert plan["others"] and all(other["why"] and other["difference"] for other in plan["others"])
    assert all(wait["seconds"] > 0 and wait["stage"] for wait in plan["waits"])
    text = engine.run("plan", "run.toml", "--explain").out
    for part in ("memory", "by kind of stage", "compute waits for", "critical path", "what lost", "one more GiB of each GPU", "one more GiB of each NUMA node"):
        assert part in text
