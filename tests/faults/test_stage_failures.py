"""A stage of any kind that fails, stalls, hangs or is late, on either rank, under every layout of a step.

The kinds are read from a trace of the layout's own program, so that a new kind is covered as soon as a layout emits it. OOM_FAULT
(core/src/program/fault_injector.h) makes the stages misbehave.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.campaign import WHOLE, selection
from harness.program import Program, Run
from harness.run_config import EXPERTS, merged
from harness.workspace import Workspace

FAILING_STEP = 3
SECONDS = 20  # within which a failed run must have ended; it takes one to three
# What a step is made of differs between these: add what emits stages of its own.
LAYOUTS = {
    "local": {},
    "ep": {"engine": {"experts": "ep"}},
    "local, clipped": {"train": {"clip_norm": 0.5}},
    "ep, clipped, auxiliary loss": {"engine": {"experts": "ep"}, "train": {"clip_norm": 0.5, "router_aux_loss": 0.01}},
    "local, half resident, weights converted": {"state": {"resident": 1, "resident_ordinary": "all", "weights": "convert"}},
    "local, reduced on the host": {"transfer": {"gradient_reduction": "host", "ordinary_delivery": "full"}},
    "local, split and kept": {"offload": {"attention_head_group": 2, "moe_chunk": 16, "keep_attention": "all", "keep_boundaries": "1+1"}, "data": {"sequence_length": 16}},
    "ep, resident, weights converted": {"engine": {"experts": "ep"}, "state": {"resident": 2, "weights": "convert"}},
    # Chunks of 5 and 3 tokens. An even share of the first is 20 rows, two rounds; owners keep rounds that end within 24 rows, and exchange others again.
    "ep, four ranks, chunks, rounds, retained, one resident": {"engine": {"experts": "ep", "ranks": 4}, "ep": {"routing_chunk": 5, "receive_rows": 15, "retain": [0, 2], "retain_rows": 24},
                                                               "state": {"resident": [1]}},
}
ALWAYS = ("counts_meet", "experts_dispatch", "experts_forward", "experts_return")  # an exchange, on whichever side it ends


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=LAYOUTS)
def layout(request, tmp_path_factory):
    return Layout(tmp_path_factory.mktemp("layout"), request.param)


class Layout:
    """A run's layout, the stages of its step, and what its run makes when nothing goes wrong."""

    def __init__(self, folder, changes):
        self.engine, self.workspace = Program(folder), Workspace(folder)
        self.engine.require("qwen3_moe", "offload", "selector", changes.get("engine", {}).get("experts", EXPERTS))
        self.changes = merged({"data": {"sequence_length": 8}, "checkpoint": {"every": 1, "keep": 4}}, changes)
        self.straight = self.engine.train(self.config("straight", output={"trace_steps": [FAILING_STEP]}))
        events = json.loads((self.straight.folder / "trace.json").read_text())["traceEvents"]
        stages = [event for event in events if event["ph"] == "X" and event["args"].get("step") == FAILING_STEP]
        assert stages, "the trace has no measured stages"
        self.stages = {}  # by kind: where it runs, as (layer, rank)
        for stage in stages:
            arguments = stage["args"]
            self.stages.setdefault(stage["cat"], set()).add((arguments.get("layer"), arguments.get("rank")))

    def config(self, folder, **changes):
        return self.workspace.config(f"{folder}.toml", **merged(merged(self.changes, changes), {"output": {"dir": folder}}))

    def cases(self, dice):
        """Every kind, on a layer and a rank that has it."""
        return [(kind, *dice.choice(sorted(places, key=str))) for kind, places in sorted(self.stages.items())]

    def misbehave(self, action, case, folder=None, **settings):
        """Trains with the fault, in `folder`, and returns what is wrong with how it ended, or nothing."""
        kind, layer, rank = case
        fault = f"action={action},kind={kind},step={FAILING_STEP}" + (f",layer={layer}" if layer is not None else "") + (f",rank={rank}" if rank is not None else "")
        folder = folder or f"{action}-{kind}-{layer}-{rank}"
        begin = time.monotonic()
        outcome = self.engine.run("train", self.config(folder, **settings), code=None, environment={"OOM_FAULT": fault}, timeout_seconds=SECONDS)
        words = [f"step {FAILING_STEP}, {kind} "]
        words += [f"layer {layer} "] if layer is not None and layer >= 0 else []
        words += [f"rank {rank} "] if rank is not None else []
        message = next((line for line in outcome.err.splitlines() if " error " in line), "")
        wrong = [] if outcome.code == 5 else [f"exit status {outcome.code}"]
        wrong += [f"the message lacks {word!r}" for word in words if word not in message]
        # Updates that are pending at a checkpoint belong to the next step; if one of them fails, that checkpoint is not written.
        newest = Run(self.workspace.folder / folder).last_checkpoint().name
        wrong += [] if newest in (f"step-{FAILING_STEP - 2:06d}", f"step-{FAILING_STEP - 1:06d}") else [f"the newest checkpoint is {newest}"]
        return f"OOM_FAULT={fault} ({time.monotonic() - begin:.1f} s): {'; '.join(wrong)}; stderr ends: {outcome.err[-600:]}" if wrong else None

    def all_wrong(self, action, cases, **settings):
        with ThreadPoolExecutor(2) as workers:
            return [wrong for wrong in workers.map(lambda case: self.misbehave(action, case, **settings), cases) if wrong]


def test_failing(layout, dice):
    cases = layout.cases(dice)
    chosen = [case for case in cases if case[0] in ALWAYS]
    wrong = layout.all_wrong("throw", chosen + selection([case for case in cases if case not in chosen], 5, dice))
    assert not wrong, "\n".join(wrong)


def test_stalled_past_the_watchdog(layout, dice):
    wrong = layout.all_wrong("stall", selection(layout.cases(dice), 1, dice), engine={"watchdog_seconds": 0.5})
    assert not wrong, "\n".join(wrong)


def test_never_returning(layout, dice):
    """A stage that heeds nothing cannot be joined; the run ends all the same."""
    wrong = layout.all_wrong("hang", selection(layout.cases(dice), 1, dice), engine={"watchdog_seconds": 0.5})
    assert not wrong, "\n".join(wrong)


def test_goes_on_after_a_failure(layout, dice):
    wrong = layout.misbehave("throw", dice.choice(layout.cases(dice)), folder="goes-on")
    assert not wrong, wrong
    assert_equal(layout.engine.train(layout.config("goes-on"), "--resume"), layout.straight)


def test_late_stages_change_nothing(layout, dice):
    for _ in range(10 if WHOLE else 1):
        seed = dice.randrange(1 << 31)
        config = layout.config(f"late-{seed}")
        layout.engine.run("train", config, environment={"OOM_FAULT": f"action=delay,microseconds=3000,seed={seed}"})
        assert_equal(Run(layout.workspace.folder / f"late-{seed}"), layout.straight)


def assert_equal(run, straight):
    """Bit for bit: losses, norms and the whole state."""
    for column in ("step", "loss", "aux_loss", "grad_norm"):
        assert run.column(column) == straight.column(column), column
    for file in sorted(straight.last_checkpoint().glob("*.safetensors")):
        assert (run.last_checkpoint() / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_fault_that_chooses_nothing_is_refused(engine, workspace):
    message = engine.run("train", workspace.config(), code=2, environment={"OOM_FAULT": "action=throw,kind=no_such_kind"}).err
    assert "no_such_kind" in message and "mixer_forward" in message
    message = engine.run("train", workspace.config(), code=2, environment={"OOM_FAULT": "action=explode"}).err
    assert "OOM_FAULT: action" in message
