"""benchmarks/steps/bound: a traced run against made-up ceilings under which its seconds can be counted by hand."""

import json
import subprocess
import sys

import pytest
from harness.program import REPOSITORY
from harness.tiny_models import TINY_CONFIGS
from harness.workspace import GLOBAL_BATCH, SEQUENCE_LENGTH

RANKS = 2
BEYOND = 1e30  # of no account
WHOLE = {"attention_head_group": 0, "moe_chunk": 1 << 20, "attention_batch": 1 << 20, "sub_batch": 1024, "keep_attention": "none", "keep_boundaries": "all"}


def ceilings(dense=BEYOND, grouped=BEYOND, forward=BEYOND, backward=BEYOND, device=BEYOND, host=BEYOND, update=BEYOND, pcie=BEYOND):
    """Heads of 32 have the rates given at the length that the run has; others, and other lengths, are far from them."""
    entries = ((16, 0, 1, 1), (64, 0, 1, 1), (32, SEQUENCE_LENGTH + 1, 1, 1), (32, SEQUENCE_LENGTH, forward, backward), (32, 0, 1, 1))
    attention = "".join("[[attention]]\nhead_dim = {}\nsequence_length = {}\nforward = {}\nbackward = {}\n".format(*entry) for entry in entries)
    return (f"{attention}[gemm]\ndense = {dense}\ngrouped = {grouped}\n[delta_rule]\nforward = {BEYOND}\nbackward = {BEYOND}\n"
            f"[memory]\ndevice = {device}\nhost = {host}\nupdate = {update}\n[pcie]\none_way = {pcie}\nboth_ways = {2 * pcie}\n")


class Bound:
    """Judges one run by ceilings."""

    def __init__(self, folder, run):
        self.folder, self.run = folder, run

    def told(self, *arguments, **rates):
        path = self.folder / "ceilings.toml"
        path.write_text(ceilings(**rates))
        return subprocess.run([sys.executable, REPOSITORY / "benchmarks/steps/bound", self.run.folder, "--ceilings", path, *arguments], cwd=self.folder,
                              capture_output=True, text=True)

    def __call__(self, *arguments, **rates):
        return json.loads(self.told("--json", *arguments, **rates).stdout)


@pytest.fixture(scope="module")
def made():
    return []


@pytest.fixture
def bound(engine, workspace, made):
    """Of a run that is made once."""
    if not made:
        changes = {"engine": {"ranks": RANKS}, "output": {"trace_steps": [2, 3]}, "offload": WHOLE, "state": {"resident": "none", "resident_ordinary": "none"}}
        made.append(Bound(engine.folder, engine.train(workspace.config(**changes))))
    return made[0]


def test_attention_is_counted_by_direction(bound):
    model = TINY_CONFIGS["qwen3_moe"]
    tokens = GLOBAL_BATCH * SEQUENCE_LENGTH // RANKS
    once = 4 * tokens * (SEQUENCE_LENGTH / 2) * model["num_attention_heads"] * model["head_dim"] * model["num_hidden_layers"]
    found = bound(forward=1e6, backward=5e6)
    # Forward, replay, and two and a half times as much backward.
    assert found["compute"]["arithmetic"] == pytest.approx(2 * once / 1e6 + 2.5 * once / 5e6, rel=1e-6)
    assert found["compute"]["traffic"] < 1e-12
    assert found["bounds"]["at_once"] == pytest.approx(found["bounds"]["in_turn"])
    assert found["bounds"]["at_once"]["by"].startswith("compute of rank")


def test_experts_have_the_rate_of_grouped_products(bound):
    model = TINY_CONFIGS["qwen3_moe"]
    tokens = GLOBAL_BATCH * SEQUENCE_LENGTH // RANKS
    expert = 2 * tokens * model["num_experts_per_tok"] * model["hidden_size"] * 3 * model["moe_intermediate_size"] * model["num_hidden_layers"]
    grouped = bound(grouped=1e6)["compute"]["arithmetic"]
    # Forward and twice as much backward, and the replay of two or all three of the products.
    assert (3 + 2 / 3 - 1e-6) * expert <= grouped * 1e6 <= (4 + 1e-6) * expert
    head = 3 * 2 * tokens * model["hidden_size"] * model["vocab_size"]
    dense = bound(dense=1e6)
    assert dense["kinds"]["head_and_loss"]["arithmetic"] == pytest.approx(head / 1e6)
    assert dense["kinds"]["experts_backward"]["arithmetic"] < 1e-12


def test_host_and_link_bound_a_step_too(bound):
    parameters = json.loads((bound.run.folder / "run.json").read_text())["model"]["parameters"]
    update = bound(update=1e6)["bounds"]["at_once"]
    # Master and moments are read and written, the gradient read (by a rank once or each), the weight written.
    assert update["by"] == "AdamW in host memory of node 0" and 32 * parameters <= update["seconds"] * 1e6 <= 40 * parameters
    link = bound(pcie=1e6)["bounds"]["at_once"]
    assert link["by"].startswith("PCIe of rank") and link["seconds"] * 1e6 >= 2 * 4 * parameters / RANKS / 2
    host = bound(host=1e6)["bounds"]["at_once"]
    assert host["by"] == "host memory of node 0" and host["seconds"] > update["seconds"]


def test_the_step_is_the_last_that_was_traced(bound):
    steps = dict(enumerate(bound.run.column("step_seconds"), 1))
    for arguments, step in (((), 3), (("--step", "2"), 2)):
        found = bound(*arguments, device=1e9, dense=1e9)
        assert found["step"] == step and found["step_seconds"] == steps[step]
        for way in ("at_once", "in_turn"):
            of = found["bounds"][way]
            assert of["measured_over_bound"] == pytest.approx(steps[step] / of["seconds"])
        compute = found["compute"]
        assert compute["at_once"] < compute["in_turn"] == pytest.approx(compute["arithmetic"] + compute["traffic"])
        assert 0 < compute["measured"] < steps[step]
        assert {"mixer_forward", "experts_backward"} <= found["kinds"].keys() and not {"weights_in", "gradient_out", "update"} & found["kinds"].keys()
        assert sum(of["measured"] for of in found["kinds"].values()) == pytest.approx(compute["measured"])
    assert "step 1 is not in the trace" in bound.told("--step", "1").stderr


def test_the_table_reads_as_it_should(bound):
    text = bound.told(dense=1e9, grouped=1e9, forward=1e9, backward=1e9, device=1e9).stdout
    assert "compute lane of rank" in text and "experts_forward" in text and "step 3, measured" in text and "measured / bound" in text

