"""The README's quick start, shortened: it must learn something and leave what it names."""

import re
import subprocess
import tomllib

from harness.program import REPOSITORY, unavailable


def test_quickstart(engine, tmp_path):
    done = subprocess.run(
        [REPOSITORY / "scripts/quickstart", "--set", "train.steps=60", "--set", f"output.dir={tmp_path / 'run'}"],
        env={"PATH": "/usr/bin:/bin", "OOM_BINARY": str(engine.binary), "OMP_WAIT_POLICY": "passive", "XDG_CACHE_HOME": str(tmp_path / "cache")}, capture_output=True, text=True, timeout=300)
    if done.returncode == 2 and "not built yet" in done.stderr:
        unavailable("oom train or oom export is not built yet")
    assert done.returncode == 0, done.stderr[-3000:]
    # Nothing is calibrated and everything fits: no plan is chosen for slices that no run has measured.
    settings = tomllib.loads((tmp_path / "run/plan.toml").read_text())["settings"]["offload"]
    assert settings["attention_head_group"] == 0 and settings["sub_batch"] == 4, settings
    loss = float(re.search(r"^loss +([\d.]+)", done.stdout, re.M)[1])
    entropy = float(re.search(r"^entropy +([\d.]+)", done.stdout, re.M)[1])
    assert loss < entropy - 0.1
    assert (tmp_path / "run/checkpoints/step-000060").is_dir()
    assert f"report     {tmp_path}/run/report.html" in done.stdout and (tmp_path / "run/report.html").is_file()
    assert list((tmp_path / "run/exported").glob("*.safetensors"))
