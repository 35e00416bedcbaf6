"""Where XLA refuses and an option helps, what follows is compiled with it."""

from collections.abc import Mapping
from typing import Any

import pytest

from nightjar_models.aot.compile_errors import (
    COLLECTIVE_KERNELS,
    TRITON_PRODUCTS,
    compile_with_remedies,
    find_remedy,
    make_error,
)
from nightjar_models.errors import CompilerError

PRODUCTS = TRITON_PRODUCTS.option
REFUSED = make_error("the program does not compile: INTERNAL: Couldn't find output tile sizes that satisfy hlo")
ENDED = (
    "LLVM Fatal Error while compiling Triton kernel: size mismatch when packing elements for LLVM struct Context: "
    "Fusion: all-reduce.49.0-fusion.1 = f32[] fusion(param_0.1388), kind=kCustom"
)


def refuse_tiles(tried: list[Mapping[str, Any]], error: CompilerError = REFUSED) -> Any:
    def compile_one(options: Mapping[str, Any]) -> str:
        tried.append(options)
        if PRODUCTS not in options or options[PRODUCTS]:
            raise error
        return "compiled"

    return compile_one


def test_a_product_without_tiles_is_compiled_without_triton_and_so_is_all_that_follows() -> None:
    tried: list[Mapping[str, Any]] = []
    options: dict[str, Any] = {"xla_a": "1"}
    assert [compile_with_remedies(refuse_tiles(tried), options) for _ in range(2)] == ["compiled"] * 2
    without = {"xla_a": "1", PRODUCTS: False}
    assert tried == [{"xla_a": "1"}, without, without]


@pytest.mark.parametrize(
    ("options", "error"), [({PRODUCTS: True}, REFUSED), ({}, CompilerError("RESOURCE_EXHAUSTED: shared memory"))]
)
def test_a_refusal_stays_if_triton_is_wanted_or_the_cause_is_other(
    options: dict[str, Any], error: CompilerError
) -> None:
    tried: list[Mapping[str, Any]] = []
    with pytest.raises(CompilerError) as raised:
        compile_with_remedies(refuse_tiles(tried, error), options)
    assert (raised.value, len(tried)) == (error, 1)


def test_one_refusal_after_the_other_is_got_around() -> None:
    tried: list[Mapping[str, Any]] = []

    def compile_one(options: Mapping[str, Any]) -> str:
        tried.append(options)
        for remedy, said in ((TRITON_PRODUCTS, REFUSED.message), (COLLECTIVE_KERNELS, ENDED)):
            if remedy.option not in options:
                raise make_error(said)
        return "compiled"

    options: dict[str, Any] = {}
    assert compile_with_remedies(compile_one, options) == "compiled"
    assert options == {PRODUCTS: False, "xla_gpu_experimental_use_collective_kernels": ""}
    assert len(tried) == 3


def test_a_kernel_of_triton_that_does_not_compile_is_laid_to_messages_only_where_it_is_one() -> None:
    assert find_remedy(ENDED) is COLLECTIVE_KERNELS
    assert make_error(ENDED).hint == f"add --xla {COLLECTIVE_KERNELS.option}=: {COLLECTIVE_KERNELS.why}"
    assert find_remedy(ENDED.replace("all-reduce", "softmax")) is None
