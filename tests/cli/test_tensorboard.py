"""The event files of a run, read by TensorBoard's own reader where it is installed, and in any case by the format's few rules."""

import struct

import pytest


def records(path):
    """The payloads of a TFRecord file, checksums checked bit by bit."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,), (of_length,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        payload = data[at + 12:at + 12 + length]
        (of_payload,) = struct.unpack_from("<I", data, at + 12 + length)
        assert of_length == masked_crc(data[at:at + 8]) and of_payload == masked_crc(payload)
        yield payload
        at += 12 + length + 4


def masked_crc(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(payload):
    """A protobuf message as (number, value) in order."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = payload[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(payload):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", payload, at)[0], at + 8
        elif key & 7 == 5:
            value, at = struct.unpack_from("<f", payload, at)[0], at + 4
        else:
            size = varint()
            value, at = payload[at:at + size], at + size
        yield key >> 3, value


def scalars(path):
    """{tag: [(step, value)]} of an event file."""
    found = {}
    for payload in records(path):
        event = dict(fields(payload))
        if 5 not in event:
            assert event[3] == b"brain.Event:2"
            continue
        assert event[1] > 1.6e9
        for _, value in fields(event[5]):
            value = dict(fields(value))
            found.setdefault(value[1].decode(), []).append((event[2], value[2]))
    return found


def expected(run):
    tags = {}
    for line in run.metrics():
        for name, value in line.items():
            for tag, number in [(f"{name}/{i}", v) for i, v in enumerate(value)] if isinstance(value, list) else [(name, value)]:
                tags.setdefault(tag, []).append((line["step"], pytest.approx(number, rel=1e-6)))
    del tags["step"], tags["time"]
    return tags


def event_file(run):
    (path,) = (run.folder / "tensorboard").iterdir()
    assert "tfevents" in path.name
    return path


def test_every_number_of_every_step(engine, workspace):
    run = engine.train(workspace.config())
    found = scalars(event_file(run))
    rates = found.pop("tokens_per_second")
    assert found == expected(run)
    assert [value for _, value in rates] == pytest.approx([line["tokens"] / line["step_seconds"] for line in run.metrics()], rel=1e-6)


def test_resuming_tells_no_step_twice(engine, workspace):
    config = workspace.config(checkpoint={"every": 2, "at_end": False})
    run = engine.train(config)  # 3 steps, the checkpoint after 2: step 3 is trained again
    engine.run("train", config, "--resume", "--set", "train.steps=5")
    found = scalars(event_file(run))
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4, 5]
    found.pop("tokens_per_second")
    assert found == expected(run)


def test_can_be_switched_off(engine, workspace):
    assert not (engine.train(workspace.config(output={"tensorboard": False})).folder / "tensorboard").exists()


def test_read_by_tensorboard(engine, workspace):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed")
    run = engine.train(workspace.config())
    accumulator = loader.EventAccumulator(str(run.folder / "tensorboard"))
    accumulator.Reload()
    assert set(accumulator.Tags()["scalars"]) == {*expected(run), "tokens_per_second"}
    events = accumulator.Scalars("loss")
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.value for event in events] == pytest.approx(run.column("loss"), rel=1e-6)
    assert [event.wall_time for event in events] == pytest.approx(run.column("time"))
