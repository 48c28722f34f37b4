"""`oom doctor`: what this machine offers, and which plugins are usable."""

from harness.run_config import EXPERTS


def test_json(engine):
    answer = engine.run("doctor", "--json").json
    assert isinstance(answer, dict)
    text = str(answer)
    assert "qwen3_moe" in text and "2.11.0" in text


def test_names_plugins_and_versions(engine):
    text = engine.run("doctor").out
    assert all(word in text for word in (EXPERTS, "offload", "qwen3_moe", "2.11.0", "NUMA"))


def test_says_why_a_plugin_is_unusable(engine):
    folder = engine.folder / "plugins"
    folder.mkdir()
    (folder / "liboom_broken.so").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(100))
    outcome = engine.run("doctor", environment={"OOM_PLUGIN_PATH": str(folder)})
    assert "broken" in outcome.out
