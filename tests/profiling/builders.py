"""Small HLO programs and traces, written as few words as a test can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.protos import hlo_pb2, xplane_pb2

# As JAX traces a line of the user's that calls a library: frames by id, each (parent, file, line, function).
FRAMES = {
    1: (0, "/home/me/train.py", 9, "main"),
    2: (1, "/home/me/train.py", 4, "loss"),
    3: (2, "/venv/lib/python3.11/site-packages/flax/nnx/nn/linear.py", 422, "Linear.__call__"),
    4: (0, "/venv/bin/train", 8, "<module>"),
}


@dataclass(frozen=True)
class Hlo:
    """An instruction: `Hlo("add.1", frame=2, operands=("p.0",), calls=("body",))`."""

    name: str
    frame: int = 0
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    opcode: str = ""
    kind: str = ""
    op_name: str = ""
    memory: int = 0  # a part of its layout
    target: str = ""  # of a custom call


def hlo_proto(
    computations: Mapping[str, Iterable[Hlo]], name: str = "jit_step", *, scheduled: bool = False
) -> hlo_pb2.HloProto:
    """A module of computations; the last instruction of each is its root, the last computation the entry.

    With a schedule, the instructions run in the order in which they are given.
    """
    listed = {title: tuple(found) for title, found in computations.items()}
    numbers = {one.name: n for n, one in enumerate((one for found in listed.values() for one in found), start=100)}
    titles = {title: n for n, title in enumerate(listed, start=1)}
    proto = hlo_pb2.HloProto()
    proto.hlo_module.name = name
    for title, found in listed.items():
        computation = proto.hlo_module.computations.add(name=title, id=titles[title], root_id=numbers[found[-1].name])
        for one in found:
            instruction = computation.instructions.add(
                name=one.name,
                opcode=one.opcode or one.name.split(".")[0],
                fusion_kind=one.kind,
                custom_call_target=one.target,
                id=numbers[one.name],
                operand_ids=[numbers[operand] for operand in one.operands],
                called_computation_ids=[titles[called] for called in one.calls],
            )
            instruction.metadata.stack_frame_id = one.frame
            instruction.metadata.op_name = one.op_name
            instruction.shape.layout.memory_space = one.memory
            instruction.shape.element_type = 11
            instruction.shape.dimensions.extend([2, 3])
        if scheduled:
            sequence = proto.hlo_module.schedule.sequences[titles[title]]
            sequence.instruction_ids.extend(numbers[one.name] for one in found)
    index = proto.hlo_module.stack_frame_index
    for number, (parent, file, line, function) in FRAMES.items():
        index.file_names.append(file)
        index.function_names.append(function)
        index.file_locations.add(file_name_id=number, function_name_id=number, line=line)
        index.stack_frames.add(file_location_id=number, parent_frame_id=parent)
    return proto


def program(computations: Mapping[str, Iterable[Hlo]], program_id: int = 7, *, scheduled: bool = False) -> Program:
    return read_program(hlo_proto(computations, scheduled=scheduled).SerializeToString(), program_id, "test")


class TraceBuilder:
    """An XSpace, event by event; times in ns."""

    def __init__(self) -> None:
        self.space = xplane_pb2.XSpace()

    def plane(self, name: str) -> xplane_pb2.XPlane:
        found = next((plane for plane in self.space.planes if plane.name == name.encode()), None)
        return found if found is not None else self.space.planes.add(name=name.encode())

    def hlo(self, program_id: int, proto: hlo_pb2.HloProto) -> TraceBuilder:
        plane = self.plane("/host:metadata")
        event = plane.event_metadata[program_id]
        event.name = f"{proto.hlo_module.name}({program_id})".encode()
        event.stats.add(metadata_id=self._stat(plane, "Hlo Proto"), bytes_value=proto.SerializeToString())
        return self

    def event(
        self, plane: str, line: str, name: str, start_ns: float, duration_ns: float, **stats: int | str
    ) -> TraceBuilder:
        """Adds an event, to the picosecond; text stats are references, as the profiler writes them."""
        where = self.plane(plane)
        lane = next((one for one in where.lines if one.name == line.encode()), None)
        if lane is None:
            lane = where.lines.add(name=line.encode(), id=len(where.lines) + 1, timestamp_ns=1_000_000)
        known = (n for n, one in where.event_metadata.items() if one.name == name.encode())
        number = next(known, len(where.event_metadata) + 1)
        where.event_metadata[number].name = name.encode()
        event = lane.events.add(
            metadata_id=number, offset_ps=round(start_ns * 1000), duration_ps=round(duration_ns * 1000)
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=self._stat(where, key))
            if isinstance(value, int):
                stat.int64_value = value
            else:
                stat.ref_value = self._stat(where, value)
        return self

    def thunk(self, name: str, start_ns: int, duration_ns: int, run_id: int = 1, **stats: int | str) -> TraceBuilder:
        known: dict[str, int | str] = {"hlo_op": name, "program_id": 7, "run_id": run_id, **stats}
        return self.event("/host:CPU", "tf_XLAEigen/1", name, start_ns, duration_ns, **known)

    def write(self, folder: Path, name: str = "t.xplane.pb") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_bytes(self.space.SerializeToString())
        return path

    @staticmethod
    def _stat(plane: xplane_pb2.XPlane, name: str) -> int:
        known = (n for n, one in plane.stat_metadata.items() if one.name == name.encode())
        number = next(known, len(plane.stat_metadata) + 1)
        plane.stat_metadata[number].name = name.encode()
        return number


TRAINING = {
    "fused": [Hlo("parameter.1"), Hlo("multiply.1", frame=3, operands=("parameter.1",))],
    "entry": [
        Hlo("parameter.0"),
        Hlo("dot.1", frame=3, operands=("parameter.0",)),
        Hlo("fusion.1", operands=("dot.1",), calls=("fused",), kind="kLoop"),
        Hlo("copy.1", operands=("fusion.1",)),
        Hlo("add.1", frame=2, operands=("copy.1",)),
    ],
}


def training_trace() -> TraceBuilder:
    """A step with a dot (60 ns), a fusion (30 ns), a copy without a stack (8 ns) and an add (2 ns)."""
    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING))
    return trace.thunk("dot.1", 0, 60).thunk("fusion.1", 60, 30).thunk("copy.1", 90, 8).thunk("add.1", 98, 2)
