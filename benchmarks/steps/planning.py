"""`oom plan --json` as the rows of benchmarks have it."""

import subprocess


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def ask(oom, config, settings):
    """The finished `oom plan`: exit 0 and 3 with one JSON object on stdout."""
    return subprocess.run([*oom, "plan", config, "--json", *sets(settings)], capture_output=True, text=True)


def prediction(plan: dict) -> dict:
    """Of a plan that fits."""
    return {"predicted_step_seconds": plan["predicted_step_seconds"], "predicted_gpu_peak_bytes": [gpu["peak_bytes"] for gpu in plan["gpu"]],
            "predicted_host_bytes": sum(node["peak_bytes"] for node in plan["host"]), "bound_by": plan["bound_by"], "parameters": plan["parameters"],
            "deferred_layers": plan["plan"]["deferred_layers"]}
