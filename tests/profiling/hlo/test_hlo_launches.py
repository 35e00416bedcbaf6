"""Which instructions XLA emits one kernel for: those of one family."""

import pytest

from nightjar_profiling.hlo.hlo import read_program
from nightjar_profiling.hlo.hlo_launches import KernelKind, LaunchPlan
from tests.profiling.builders import Hlo, hlo_proto


def test_a_family_is_told_by_operands_or_where_an_instruction_calls_a_computation_by_that() -> None:
    body = [Hlo("parameter.9", opcode="parameter"), Hlo("negate.9", operands=("parameter.9",))]
    other = [Hlo("parameter.8", opcode="parameter"), Hlo("sine.8", operands=("parameter.8",))]
    small, large = Hlo("small", opcode="parameter"), Hlo("large", opcode="parameter")
    main = [
        *(small, large),
        *(Hlo(f"reduce.{name}", operands=(name,)) for name in ("small", "large")),
        Hlo("reduce.again", operands=("small",)),
        *(Hlo(f"fusion.{name}", operands=(name,), calls=("body",)) for name in ("small", "large")),
        Hlo("fusion.other", operands=("small",), calls=("other",)),
    ]
    proto = hlo_proto({"body": body, "other": other, "main": main}, scheduled=True)
    (row,) = (row for row in proto.hlo_module.computations[-1].instructions if row.name == "large")
    row.shape.dimensions[0] = 4
    family_of = LaunchPlan(read_program(proto.SerializeToString(), 7, "test")).family_of
    assert family_of("reduce.small") == family_of("reduce.again") != family_of("reduce.large")
    assert family_of("fusion.small") == family_of("fusion.large") != family_of("fusion.other")


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("[CUDA memcpy DtoD]", "kernel", (KernelKind.COPY, "", None)),
        ("any", "memcpy", (KernelKind.COPY, "", None)),
        ("memset32", "kernel", (KernelKind.MEMSET, "", None)),
        ("any", "memset", (KernelKind.MEMSET, "", None)),
        ("set_while_condition", "kernel", (KernelKind.CONDITION, "", None)),
        ("ncclDevKernel_AllReduce_Sum", "kernel", (KernelKind.COLLECTIVE, "", None)),
        ("sm90_xmma_wgrad", "kernel", (KernelKind.LIBRARY, "cudnn", None)),
        ("nvjet_hsh_128x64", "kernel", (KernelKind.LIBRARY, "cublas", None)),
        ("memcpyish", "kernel", (KernelKind.LIBRARY, "", None)),
        ("negate_9__2", "kernel", (KernelKind.EMITTED, "", "negate.9")),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str, found: tuple[KernelKind, str, str | None]) -> None:
    entry = [Hlo("parameter.9", opcode="parameter"), Hlo("negate.9", operands=("parameter.9",))]
    plan = LaunchPlan(read_program(hlo_proto({"main": entry}, scheduled=True).SerializeToString(), 7, "test"))
    kernel = plan.find_kernel(name, kind)
    assert (kernel.kind, kernel.vendor, kernel.instruction) == found
