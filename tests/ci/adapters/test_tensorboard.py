"""Event files as written by tensorboardX and by TensorFlow (scalars in tensors)."""

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX import SummaryWriter
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

from nightjar_ci.adapters import Adapter
from nightjar_ci.adapters.convert import gather
from nightjar_ci.adapters.tensorboard import checksum, read_events
from nightjar_ci.errors import InputError

FLOAT, DOUBLE, INT32, STRING, INT64, BFLOAT16, HALF = 1, 2, 3, 7, 9, 14, 19


def frame(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", checksum(head)) + payload + struct.pack("<I", checksum(payload))


def event(step: int, tag: str, tensor: TensorProto) -> bytes:
    value = Summary.Value(tag=tag, tensor=tensor)
    return frame(Event(step=step, wall_time=1.0, summary=Summary(value=[value])).SerializeToString())


def test_scalars_of_a_real_writer_are_read_and_other_values_skipped(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    for step in range(5):
        writer.add_scalar("learning/loss", 5.0 - step, step)
        writer.add_scalars("perf", {"a": step, "b": -step}, step)
    writer.add_text("note", "hello", 0)
    writer.add_histogram("weights", np.arange(100.0), 0)
    writer.close()
    (path,) = tmp_path.glob("events.*")
    adapter = Adapter.model_validate({"format": "tensorboard", "curve": [{"field": "learning/loss"}]})
    (curve,), _ = gather(list(read_events(path)), adapter, str(path))
    assert (curve.steps, curve.values) == ((0, 1, 2, 3, 4), (5.0, 4.0, 3.0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (TensorProto(dtype=FLOAT, tensor_content=struct.pack("<f", 2.5)), 2.5),
        (TensorProto(dtype=FLOAT, float_val=[2.5]), 2.5),
        (TensorProto(dtype=DOUBLE, double_val=[0.1]), 0.1),
        (TensorProto(dtype=DOUBLE, tensor_content=struct.pack("<d", 0.1)), 0.1),
        (TensorProto(dtype=INT32, int_val=[-7]), -7.0),
        (TensorProto(dtype=INT64, int64_val=[-(2**40)]), -(2.0**40)),
        (TensorProto(dtype=HALF, half_val=[0x3E00]), 1.5),
        (TensorProto(dtype=BFLOAT16, half_val=[0x3FC0]), 1.5),
        (TensorProto(dtype=BFLOAT16, tensor_content=struct.pack("<H", 0x3FC0)), 1.5),
        (TensorProto(dtype=FLOAT, tensor_shape=TensorShapeProto()), 0.0),
    ],
)
def test_a_tensor_of_one_number_is_a_scalar(tmp_path: Path, tensor: TensorProto, expected: float) -> None:
    path = tmp_path / "events"
    path.write_bytes(event(3, "loss", tensor))
    (record,) = read_events(path)
    assert record.fields == {"step": 3, "loss": pytest.approx(expected, rel=1e-15)}


@pytest.mark.parametrize(
    "tensor", [TensorProto(dtype=FLOAT, float_val=[1.0, 2.0]), TensorProto(dtype=STRING, string_val=[b"text"])]
)
def test_larger_tensors_and_text_are_skipped(tmp_path: Path, tensor: TensorProto) -> None:
    path = tmp_path / "events"
    path.write_bytes(event(3, "image", tensor))
    assert list(read_events(path)) == []


def test_negative_steps_are_read_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events"
    whole = event(-1, "loss", TensorProto(dtype=FLOAT, float_val=[1.0])) * 2
    path.write_bytes(whole)
    assert [record.fields["step"] for record in read_events(path)] == [-1, -1]
    path.write_bytes(whole[:-3])
    with pytest.raises(InputError, match=r"events: record 2 at byte \d+: the file is incomplete"):
        list(read_events(path))
    damaged = bytearray(whole)
    damaged[len(whole) // 2 + 20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"record 2 at byte \d+: damaged"):
        list(read_events(path))
    path.write_bytes(b"step,loss\n0,1\n1,2\n2,3\n")
    with pytest.raises(InputError, match="not a TensorBoard event file"):
        list(read_events(path))
    path.write_bytes(frame(b"\xff\xff\xff"))
    with pytest.raises(InputError, match="not a valid Event message"):
        list(read_events(path))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        path.write_bytes(frame(data))
        refusal = ""
        try:
            list(read_events(path))
        except InputError as error:
            refusal = str(error)
        assert not refusal or refusal.startswith(f"{path}: record 1")


@given(st.binary(max_size=100))
def test_checksums_are_those_of_another_implementation(data: bytes) -> None:
    crc = crc32c(data)
    assert checksum(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
