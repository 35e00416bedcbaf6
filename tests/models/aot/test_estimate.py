"""The time of a collective by hand: bytes over a link's rate, and each step of the ring."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from nightjar_models.aot.estimate import HOP_S, KERNEL_FLOOR_S, _Line, time_collective
from nightjar_models.aot.summary import describe_fit
from nightjar_models.hardware.target import parse_cluster
from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.module import read_module
from tests.models.measuring.test_hlo import FROM_TEXT

TARGET = replace(parse_cluster("h100x16").target, nvlink_bytes_per_s=1e9, network_bytes_per_s=1e8, devices_per_host=8)


@pytest.mark.parametrize(
    ("kind", "group", "bound", "sent", "hops"),
    [
        ("all-gather", range(4), "nvlink", 750, 3),
        ("reduce-scatter", range(4), "nvlink", 750, 3),
        ("all-reduce", range(4), "nvlink", 1500, 6),
        ("collective-permute", range(4), "nvlink", 1000, 1),
        ("all-to-all", range(4), "nvlink", 750, 1),
        ("ragged-all-to-all", range(4), "nvlink", 750, 1),
        ("all-gather", (7, 8), "network", 500, 1),  # one device of each host
        ("all-gather", range(16), "network", 937.5, 15),  # eight links each, 0.8 of what NVLink has
    ],
)
def test_a_collective_takes_its_bytes_and_its_steps(
    kind: str, group: range, bound: str, sent: float, hops: int
) -> None:
    rate = {"nvlink": 1e9, "network": 1e8 * (1 if len(group) == 2 else 8)}
    found, seconds = time_collective(kind, 1000, tuple(group), TARGET)
    assert found == bound
    assert seconds == pytest.approx(sent / rate[bound] + hops * HOP_S[bound])


@pytest.mark.parametrize(("devices", "up"), [(16, 1), (24, 2), (2048, 8)])
def test_an_all_reduce_over_hosts_climbs_a_tree(devices: int, up: int) -> None:
    _, seconds = time_collective("all-reduce", 1000, tuple(range(devices)), TARGET)
    sent = 2000 * (devices - 1) / devices
    assert seconds == pytest.approx(sent / 8e8 + 2 * up * HOP_S["network"] + 14 * HOP_S["nvlink"])


def test_a_device_alone_sends_nothing() -> None:
    assert time_collective("all-reduce", 1000, (3,), TARGET) == ("nvlink", KERNEL_FLOOR_S)


DEVICE = 80 << 30


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.01, "fits"),
        (0.75 * 0.95, "fits"),
        (0.7126, "fits with XLA_CLIENT_MEM_FRACTION=0.76"),
        (0.90 * 0.95, "fits with XLA_CLIENT_MEM_FRACTION=0.90"),
    ],
)
def test_a_step_that_needs_more_than_jax_takes_by_itself_names_the_variable(share: float, said: str) -> None:
    assert describe_fit(int(share * DEVICE), DEVICE) == said


def test_a_step_that_does_not_fit_says_what_would_make_it_smaller() -> None:
    said = describe_fit(int(0.90 * 0.95 * DEVICE) + 1, DEVICE)
    assert said.startswith("does not fit: JAX takes at most 90% of a device, and a step at most 95% of that")
    assert "compute.remat=full" in said


LINE = """HloModule m, is_scheduled=true

add { x = f32[] parameter(0)
  ROOT sum = f32[] add(x, x) }

wrapped { p = f32[8] parameter(0)
  ROOT inner = f32[8] all-reduce(p), replica_groups={{0,1}}, to_apply=add }

ENTRY main {
  a = f32[8] parameter(0)
  start = f32[8] all-reduce-start(a), replica_groups={{0,1}}, to_apply=add
  work = f32[8] negate(a)
  done = f32[8] all-reduce-done(start)
  sync = f32[8] all-reduce-start(a), replica_groups={{0,1}}, to_apply=add, backend_config={CONFIG}
  quick = f32[8] negate(a)
  synced = f32[8] all-reduce-done(sync)
  outer = ((f32[8]), f32[8]) async-start(a), calls=wrapped
  late = f32[8] negate(a)
  ROOT ended = f32[8] async-done(outer)
}"""


def test_communication_is_exposed_after_the_work_beside_it() -> None:
    text = LINE.replace("CONFIG", '"collective_backend_config":{"is_sync":true}')
    module = read_module(pack_module(parse_module(FROM_TEXT(text).as_serialized_hlo_module_proto())))
    seconds = {"start": 5.0, "work": 2.0, "sync": 3.0, "quick": 1.0, "inner": 7.0, "late": 4.0}
    numbers = {one.name: number for number, one in module.instructions.items()}
    line = _Line(module, {numbers[name]: SimpleNamespace(seconds=s) for name, s in seconds.items()})  # type: ignore[misc]
    line.run(module.proto.hlo_module.entry_computation_id)
    spans = [(span.instruction, span.start_s, span.seconds) for span in line.spans]
    begins = {"start": 0.0, "work": 0.0, "sync": 5.0, "quick": 8.0, "inner": 9.0, "late": 9.0}
    assert spans == [(name, begin, seconds[name]) for name, begin in begins.items()]
    assert (line.now, line.exposed) == (16.0, 3.0 + 3.0 + 3.0)
