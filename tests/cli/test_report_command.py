"""`oom report`: one page that needs nothing else, whatever state the run folder is in."""

import fcntl
import html.parser
import json
import re
import shutil
import subprocess

import pytest
from harness.program import Run

SECTIONS = ["training", "speed", "memory", "experts", "timeline", "bounds", "setup"]
BUDGET = {"gpu": "1GiB", "headroom": "16MiB", "host": "2GiB"}
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(html.parser.HTMLParser):
    """A page taken apart: sections, headings, the data beside it, and every attribute that could fetch something."""

    def __init__(self, path):
        super().__init__()
        self.text = path.read_text()
        self.open, self.sections, self.fetching, self.data, self.title = [], [], [], None, ""
        self.feed(self.text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append((tag, attributes))
        if tag == "section":
            self.sections.append(attributes["id"])
        self.fetching += [f"{tag} {name}" for name in attributes if name in ("src", "href", "srcset", "action", "data", "poster")]

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1][0] == "title":
            self.title += text
        if self.open and self.open[-1][0] == "script" and self.open[-1][1].get("id") == "data":
            self.data = json.loads(text)


def report(engine, folder, *arguments):
    """Runs the command, whose output is the page's path alone, and takes the page apart."""
    outcome = engine.run("report", folder, *arguments)
    path = engine.folder / outcome.out.strip()
    assert outcome.out == f"{outcome.out.strip()}\n" and path.is_file()
    page = Page(path)
    page.errors = outcome.err
    assert page.sections == SECTIONS
    assert not page.fetching and not re.search(r"https?:|url\((?!#)|@import", page.text)
    return page


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with everything that a page can show, made once; tests change copies of it."""
    return {}


@pytest.fixture
def run(engine, workspace, finished, tmp_path_factory):
    if "folder" not in finished:
        made = engine.train(workspace.config(train={"steps": 4}, output={"trace_steps": [2, 4], "expert_load_every": 2}, checkpoint={"every": 2}, budget=BUDGET))
        finished["folder"] = tmp_path_factory.mktemp("finished") / "run"
        shutil.copytree(made.folder, finished["folder"])
    shutil.copytree(finished["folder"], workspace.folder / "run", dirs_exist_ok=True)
    return Run(workspace.folder / "run")


def test_everything_is_on_the_page(engine, run):
    page = report(engine, "run")
    assert (run.folder / "report.html").is_file() and page.title == "run"
    data = page.data
    assert data["state"]["name"] == "done" and data["state"]["text"] == "after step 4 of 4" and not data["notes"]
    assert data["metrics"]["step"] == [1, 2, 3, 4] and data["metrics"]["loss"] == run.column("loss")
    assert data["metrics"]["gpu_peak_bytes/1"] == [line["gpu_peak_bytes"][1] for line in run.metrics()]
    assert data["checkpoints"] == [{"step": 2, "name": "step-000002"}, {"step": 4, "name": "step-000004"}]
    assert data["plan_toml"] == (run.folder / "plan.toml").read_text() and data["config_toml"] == (run.folder / "config.toml").read_text()


def test_memory_is_the_plan_s(engine, run, workspace):
    planned = engine.run("plan", workspace.config(train={"steps": 4}, budget=BUDGET), "--json").json
    data = report(engine, "run").data
    assert data["run"]["predicted"]["step_seconds"] == pytest.approx(planned["predicted_step_seconds"])
    places = {place["place"]: place for place in data["run"]["memory"]}
    assert list(places) == ["gpu 0", "gpu 1", "numa 0"]
    for rank, wanted in enumerate(planned["gpu"]):
        place = places[f"gpu {rank}"]
        assert place["peak_bytes"] == wanted["peak_bytes"] == max(sum(row) for row in place["bytes"])
        assert place["budget_bytes"] == 1 << 30 and place["headroom_bytes"] == 16 << 20
        assert sum(place["at_peak"]) == place["peak_bytes"]
        assert place["times"] == sorted(place["times"]) and len(place["times"]) == len(place["bytes"]) > 4
    assert places["numa 0"]["budget_bytes"] == planned["host"][0]["budget_bytes"] == 2 << 30


def test_what_lost_is_told(engine, run, workspace):
    """The plans that planning tried beside the chosen one, as `oom plan --explain` tells them."""
    plan = report(engine, "run").data["run"]["plan"]
    assert plan["runners_up"] and isinstance(plan["budget_gains"], list)
    explained = engine.run("plan", workspace.config(train={"steps": 4}, budget=BUDGET), "--explain").out
    for lost in plan["runners_up"]:
        assert lost["why"] and lost["gpu_peak_bytes"] and f"{lost['why']} " in explained and lost["difference"] in explained
    # A plan that was stated was not compared with any.
    stated = engine.train(workspace.config(train={"steps": 1}, budget=BUDGET, engine={"plan": str(run.folder / "plan.toml")}, output={"dir": "stated"}))
    assert "runners_up" not in json.loads((stated.folder / "run.json").read_text())["plan"]


def test_expert_load_counts_every_choice(engine, run):
    config = json.loads((engine.folder / "model/config.json").read_text())
    lines = [json.loads(line) for line in (run.folder / "expert_load.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 4]  # the first, every second, the last
    for line in lines:
        assert len(line["tokens"]) == config["num_hidden_layers"]
        for layer in line["tokens"]:
            assert len(layer) == config["num_experts"] and sum(layer) == run.metrics()[0]["tokens"] * config["num_experts_per_tok"]
    load = report(engine, "run").data["expert_load"]
    assert load["step"] == 4 and load["tokens"] == lines[-1]["tokens"] and [record["step"] for record in load["history"]] == [1, 2, 4]


def test_measured_stands_beside_predicted(engine, run):
    trace = report(engine, "run").data["trace"]
    assert trace["step"] == 4 and [step["step"] for step in trace["steps"]] == [2, 4]
    assert len(trace["measured"]) == len(trace["predicted"]) > 50
    assert {lane["place"] for lane in trace["lanes"]} == {"rank 0", "rank 1", "node 0"}
    events = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    of_kind = lambda kind: sum(event["dur"] for event in events if event["ph"] == "X" and event["cat"] == kind and event["args"].get("step") == 4) * 1e-6
    kinds = {kind["kind"]: kind["seconds"] for kind in trace["steps"][1]["kinds"] if kind["lane"] == "compute"}
    for kind in ("mixer_forward", "experts_backward"):
        assert kinds[kind] == pytest.approx(of_kind(kind))
    # Every kind of stage on every lane, both ways.
    names = lambda entries: {(entry["lane"], entry["kind"]) for entry in entries}
    predicted = names(report(engine, "run").data["run"]["predicted"]["kinds"])
    assert len(predicted) > 20 and all(names(step["kinds"]) == predicted for step in trace["steps"])


def test_one_step_is_summed_without_a_trace(engine, workspace):
    run = engine.train(workspace.config(train={"steps": 3}))
    assert not (run.folder / "trace.json").exists() and (run.folder / "stage_kinds.txt").exists()
    data = report(engine, "run").data
    sums = data["stage_kinds"]
    assert "trace" not in data and "stage_kinds" not in data["missing"] and sums["step"] == 3
    assert sums["seconds"] == pytest.approx(run.metrics()[2]["step_seconds"])
    predicted = {(kind["lane"], kind["kind"]): kind for kind in data["run"]["predicted"]["kinds"]}
    assert len(predicted) > 20 and {(kind["lane"], kind["kind"]) for kind in sums["kinds"]} == set(predicted)
    for kind in sums["kinds"]:
        there = predicted[kind["lane"], kind["kind"]]
        assert kind["stages"] == there["stages"] and kind["predicted_seconds"] == pytest.approx(there["seconds"])
    # All that ran took time, and the compute lanes no more than the step.
    assert sum(kind["seconds"] > 0 for kind in sums["kinds"]) > 0.8 * len(predicted)
    assert 0 < sum(kind["seconds"] for kind in sums["kinds"] if kind["lane"] == "compute") < 2 * 1.1 * sums["seconds"]


def test_trace_is_one_that_viewers_open(run):
    """Complete events on named lanes, from time 0 on, none of a lane overlapping another."""
    trace = json.loads((run.folder / "trace.json").read_text())
    stages = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in stages} == named
    assert min(event["ts"] for event in stages) == 0 and all(event["dur"] >= 0 for event in stages)
    for lane in named:
        ordered = sorted((event["ts"], event["ts"] + event["dur"]) for event in stages if (event["pid"], event["tid"]) == lane)
        assert all(later[0] >= earlier[1] - 1e-3 for earlier, later in zip(ordered, ordered[1:]))
    measured = [event for event in stages if event["args"].get("step") == 4]
    assert all("predicted_ms" in event["args"] for event in measured)


def test_what_is_missing_names_its_key(engine, workspace):
    engine.train(workspace.config(output={"expert_load_every": 0}, train={"steps": 2}))
    page = report(engine, "run")
    assert "output.trace_steps" in page.data["missing"]["trace"] and "output.expert_load_every" in page.data["missing"]["expert_load"]
    assert "eval.every" in page.data["missing"]["evaluation"]
    assert "trace" not in page.data and "expert_load" not in page.data
    assert not (engine.folder / "run/expert_load.jsonl").exists()


def test_page_elsewhere(engine, run):
    report(engine, "run", "--out", "elsewhere.html")
    assert (engine.folder / "elsewhere.html").is_file() and not (run.folder / "report.html").exists()


class TestStates:
    def test_running(self, engine, run):
        with open(run.folder / ".lock") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert report(engine, "run").data["state"]["name"] == "running"

    def test_interrupted_and_resumed(self, engine, run):
        lines = (run.folder / "events.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["status"] == "done"
        (run.folder / "events.jsonl").write_text("\n".join([*lines[:-1], '{"event":"end","step":4,"status":"interrupted"}', ""]))
        assert report(engine, "run").data["state"]["name"] == "interrupted"
        (run.folder / "events.jsonl").write_text("\n".join([*lines, '{"event":"start","step":4,"steps":9}', ""]))
        data = report(engine, "run").data
        assert data["state"]["name"] == "ended" and "killed" in data["state"]["text"] and data["starts"] == [4]

    def test_diverged(self, engine, workspace):
        engine.train(workspace.config(train={"learning_rate": 1e30, "updates": "deferred"}), code=6)
        state = report(engine, "run").data["state"]
        assert state["name"] == "diverged" and "step 2" in state["text"]

    def test_without_a_step(self, engine, run):
        (run.folder / "metrics.jsonl").write_text("")
        page = report(engine, "run")
        assert page.data["metrics"]["step"] == [] and "No step" in page.data["missing"]["metrics"]

    def test_resumed_runs_tell_no_step_twice(self, engine, workspace):
        config = workspace.config(output={"expert_load_every": 1}, train={"steps": 2})
        engine.train(config)
        engine.run("train", config, "--resume", "--set", "train.steps=3")
        data = report(engine, "run").data
        assert data["metrics"]["step"] == [1, 2, 3] and [record["step"] for record in data["expert_load"]["history"]] == [1, 2, 3]
        assert data["starts"] == [2]


class TestDamage:
    def test_a_half_written_line_is_left_out(self, engine, run):
        path = run.folder / "metrics.jsonl"
        path.write_text(path.read_text() + '{"step":5,"loss":1.')
        page = report(engine, "run")
        assert page.data["metrics"]["step"] == [1, 2, 3, 4] and any("half-written" in note for note in page.data["notes"])

    def test_a_damaged_line_is_named(self, engine, run):
        path = run.folder / "metrics.jsonl"
        lines = path.read_text().splitlines()
        lines[1] = lines[1].replace(":", "", 1)
        path.write_text("\n".join(lines) + "\n")
        page = report(engine, "run")
        assert page.data["metrics"]["step"] == [1, 3, 4]
        assert any("metrics.jsonl:2" in note for note in page.data["notes"]) and "metrics.jsonl:2" in page.errors

    def test_numbers_that_are_none(self, engine, run):
        path = run.folder / "metrics.jsonl"
        path.write_text(path.read_text() + '{"step":5,"loss":null,"grad_norm":"high","tokens":[]}\n{"loss":1}\n')
        data = report(engine, "run").data
        assert data["metrics"]["step"][-1] == 5 and data["metrics"]["loss"][-1] is None and data["metrics"]["grad_norm"][-1] is None

    @pytest.mark.parametrize("name, part", [("run.json", "run"), ("trace.json", "trace"), ("expert_load.jsonl", "expert_load"), ("events.jsonl", "checkpoints")])
    @pytest.mark.parametrize("content", ["", "{", "null", "[1]", '{"version":1}', '{"version":2,"tokens":7,"traceEvents":[1,{"ph":"X"},{"ph":"M","name":5}]}\n'])
    def test_other_files(self, engine, run, name, part, content):
        """Whatever stands in a file: a page with the rest, and a note unless the file may be empty."""
        (run.folder / name).write_text(content)
        data = report(engine, "run").data
        assert not data.get(part) and data["metrics"]["step"] == [1, 2, 3, 4]
        if name.endswith(".json"):
            assert any(name in note for note in data["notes"])

    def test_no_run(self, engine, workspace):
        assert "nowhere" in engine.run("report", "nowhere", code=4).err
        (workspace.folder / "empty").mkdir()
        message = engine.run("report", "empty", code=4).err
        assert "empty" in message and "metrics.jsonl" in message

    def test_a_page_that_cannot_be_written(self, engine, run):
        assert "report.html" in engine.run("report", "run", "--out", "nowhere/report.html", code=4).err


def test_text_of_files_is_never_markup(engine, run):
    evil = "</script><script>alert(1)</script><!-- & \u2028"
    events = run.folder / "events.jsonl"
    events.write_text(events.read_text() + json.dumps({"event": "end", "status": "failed", "message": evil}) + "\n")
    (run.folder / "config.toml").write_text(f"# {evil}\n")
    (engine.folder / "run").rename(engine.folder / "<b>&\"run")
    page = report(engine, "<b>&\"run")
    assert "alert(1)</script>" not in page.text and "<b>&" not in page.text
    assert page.data["state"]["text"].endswith(evil) and page.data["config_toml"] == f"# {evil}\n" and page.title == "<b>&\"run"


def test_drawn_by_a_browser(engine, run):
    """The scripts of the page run without a fault, and draw something into every figure."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if not browser:
        pytest.skip("no Chromium here")
    report(engine, "run")
    drawn = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom", f"file://{run.folder / 'report.html'}"],
                           capture_output=True, text=True, timeout=120).stdout
    drawn = re.sub(r"<script.*?</script>", "", drawn, flags=re.S)
    assert "could not be drawn" not in drawn
    figures = re.findall(r"<figure[^>]*id=\"([\w-]+)\"[^>]*>(.*?)</figure>", drawn, re.S)
    assert len(figures) > 15
    assert [name for name, content in figures if "<svg" not in content and "class=\"missing\"" not in content and "class=\"hint\"" not in content] == []
