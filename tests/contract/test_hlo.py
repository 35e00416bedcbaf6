"""Both packages that read HLO declare its messages by the numbers of XLA's .proto files, and count the same bits."""

import pytest

from nightjar_models.measuring.hlo import _BITS, _MESSAGES
from nightjar_profiling.hlo.shapes import ELEMENT_BITS
from nightjar_profiling.protos import hlo_pb2

NAMES = {
    **{"Hlo": "HloProto", "Module": "HloModule", "Computation": "HloComputation", "Instruction": "HloInstruction"},
    **{"Metadata": "OpMetadata", "DotDimensions": "DotDimensionNumbers", "Allocation": "BufferAllocation"},
    **{"ConvolutionDimensions": "ConvolutionDimensionNumbers", "DeviceList": "CollectiveDeviceList"},
    **{"Schedule": "HloSchedule", "MeshGroups": "MeshReplicaGroups", "BufferLocation": "LogicalBuffer.Location"},
    **{"Assigned": "BufferAllocation.Assigned", "HeapEvent": "HeapTrace.Event"},
    **{"FileLocation": "StackFrameIndex.FileLocation", "StackFrame": "StackFrameIndex.StackFrame"},
    **{"IdSequence": "HloSchedule.Sequence", "SubAxis": "MeshReplicaGroups.SubAxis"},
    **{"MeshAxes": "MeshReplicaGroups.Mesh", "MeshAxisRef": "MeshReplicaGroups.AxisRef"},
}
OWN = {"SourceTarget", "MeshAxis", "Reordering", "ScheduleEntry", "Iota"}  # of models alone


@pytest.mark.parametrize("name", sorted(_MESSAGES.keys() - OWN))
def test_a_message_has_the_same_numbers_in_both(name: str) -> None:
    outer, _, inner = NAMES.get(name, name).partition(".")
    message = hlo_pb2.DESCRIPTOR.message_types_by_name[outer]
    if inner:
        message = message.nested_types_by_name[inner]
    theirs = {field.name: field.number for field in message.fields}
    ours = {field: number for field, (number, _) in _MESSAGES[name].items()}
    shared = ours.keys() & theirs.keys()
    assert shared
    assert {field: ours[field] for field in shared} == {field: theirs[field] for field in shared}


def test_an_element_has_the_same_bits_in_both() -> None:
    assert _BITS == ELEMENT_BITS
