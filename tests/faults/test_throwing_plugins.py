"""Whatever a plugin throws, wherever: the run ends, and the message names the plugin and the call, or the stage and the step."""

import pytest

FOLDER = "tests/bad_plugins/steps"


@pytest.fixture
def throw(engine, workspace):
    folder = engine.binary.parents[1] / FOLDER
    if not (folder / "liboom_throwing_step.so").exists():
        pytest.skip(f"{folder} is not built")

    def run(where, what, code):
        config = workspace.config(engine={"plugin_path": [str(folder)], "activations": "throwing_step"}, throwing_step={"where": where, "what": what})
        return [line for line in engine.run("train", config, code=code).err.splitlines() if " error " in line][-1]

    return run


@pytest.mark.parametrize("what, code, text", [("file", 4, "parts.bin: byte 12"), ("private", 5, "a class of the plugin's own"), ("number", 1, "no std::exception")])
def test_in_a_step(throw, what, code, text):
    message = throw("step", what, code)
    assert "step 2, mischief layer 1 rank 0 (issue" in message and text in message


@pytest.mark.parametrize("where, call", [("configure", "configure"), ("emit", "emit_training")])
@pytest.mark.parametrize("what, code, text", [("private", 1, "PrivateError: a class of the plugin's own"), ("number", 1, "threw a int")])
def test_while_planning(throw, where, call, what, code, text):
    message = throw(where, what, code)
    assert f"plugin 'throwing_step', {call}: " in message and text in message


def test_an_error_with_its_place_stays_as_it_is(throw):
    assert throw("configure", "file", 4).endswith("error parts.bin: byte 12 is wrong")
