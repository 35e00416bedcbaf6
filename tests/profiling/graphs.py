"""A step in a CUDA graph: its program, the kernels that ran, and the instruction that launched each."""

from tests.profiling.builders import Hlo


def fused(name: str, *operations: str) -> list[Hlo]:
    parts = [Hlo(f"parameter.{name}", opcode="parameter")]
    for number, operation in enumerate(operations):
        parts.append(Hlo(f"{operation}.{name}.{number}", frame=2, operands=(parts[-1].name,), opcode=operation))
    return parts


LAYER = ("add.1", "gemm.1", "add.2", "gemm.2", "mul.1", "copy.1")
STEP = {
    "sum": fused("sum", "add"),
    "sum_again": fused("sum_again", "add"),
    "product": fused("product", "multiply"),
    "main": [
        Hlo("parameter.0"),
        Hlo("add.1", frame=1, operands=("parameter.0",), calls=("sum",), opcode="fusion", kind="kLoop"),
        Hlo("gemm.1", frame=1, operands=("add.1",), opcode="custom-call", target="__cublas$lt$matmul"),
        Hlo("add.2", frame=2, operands=("gemm.1",), calls=("sum_again",), opcode="fusion", kind="kLoop"),
        Hlo("gemm.2", frame=2, operands=("add.2",), opcode="custom-call", target="__cublas$lt$matmul"),
        Hlo("mul.1", frame=3, operands=("gemm.2",), calls=("product",), opcode="fusion", kind="kLoop"),
        Hlo("copy.1", frame=3, operands=("mul.1",)),
    ],
}
# The kernel of add.1 runs for add.2, too; a product is one or two kernels of a library; the copy one of CUDA's own.
NODES = (
    *("add_1", "Memset 0", "nvjet_tst_128x160", "add_1"),
    *("nvjet_tst_192x192_splitK", "splitKreduce_kernel", "mul_1", "memcpy32_post"),
)
TRUTH = ["add.1", "gemm.1", "gemm.1", "add.2", "gemm.2", "gemm.2", "mul.1", "copy.1"]
