"""Kernels in the order in which they ran are aligned with the instructions that launch them."""

import random

import pytest

from nightjar_profiling.hlo.hlo_launches import LaunchPlan
from nightjar_profiling.readers.node_alignment import align
from tests.profiling.builders import Hlo, program
from tests.profiling.graphs import NODES, STEP, TRUTH, fused


def aligned(*kernels: str) -> list[str | None]:
    plan = LaunchPlan(program(STEP, scheduled=True))
    return align([plan.find_kernel(kernel) for kernel in kernels], plan.launchers["main"])


def test_kernels_find_their_instructions_by_name_family_and_place() -> None:
    assert aligned(*NODES) == TRUTH


def test_a_kernel_that_the_program_does_not_explain_stays_open() -> None:
    assert aligned("add_1", "nvjet_a", "somebody_elses_kernel<int>", "add_1", "nvjet_b", "mul_1") == [
        *("add.1", "gemm.1", "gemm.1", "add.2", "gemm.2", "mul.1")
    ]  # a library may launch what it likes
    assert aligned("add_1", "nvjet_a", "add_1", "nvjet_b", "mul_1", "unknown")[-1] is None


def test_what_two_instructions_might_have_launched_is_given_to_neither() -> None:
    two = {"main": [Hlo("parameter.0"), *(Hlo(f"gemm.{n}", opcode="custom-call", frame=1) for n in (1, 2))]}
    plan = LaunchPlan(program(two, scheduled=True))
    kernels = [plan.find_kernel(name) for name in ("gemm_kernel_a", "gemm_kernel_b", "gemm_kernel_c")]
    assert align(kernels, plan.launchers["main"]) == ["gemm.1", None, "gemm.2"]
    assert align(kernels[:2], plan.launchers["main"]) == ["gemm.1", "gemm.2"]
    assert align(kernels[:1], plan.launchers["main"]) == [None]


def test_a_kernel_of_another_family_is_not_taken() -> None:
    assert aligned("mul_1", "nvjet_a") == ["mul.1", None]  # no product comes behind it


@pytest.mark.parametrize("seed", range(20))
def test_long_programs_with_reused_kernels_are_aligned_whole(seed: int) -> None:
    chance = random.Random(seed)
    bodies = {f"body{n}": fused(f"b{n}", *["add", "multiply", "tanh"][: n % 3 + 1]) for n in range(3)}
    computations, main, ran, truth = dict(bodies), [Hlo("parameter.0")], [], []
    first_of: dict[int, str] = {}
    for number in range(300):
        kind = chance.randrange(4)
        if kind == 3:
            main.append(Hlo(f"gemm.{number}", opcode="custom-call", target="__cublas$lt$matmul"))
            kernels = ["nvjet_x", "splitKreduce_kernel"][: chance.randint(1, 2)]
        else:
            computations[f"c{number}"] = fused(f"c{number}", *["add", "multiply", "tanh"][: kind + 1])
            main.append(Hlo(f"fusion.{number}", calls=(f"c{number}",), kind="kLoop", opcode="fusion"))
            kernels = [first_of.setdefault(kind, f"fusion_{number}")]
        ran += kernels
        truth += [main[-1].name] * len(kernels)
    plan = LaunchPlan(program({**computations, "main": main}, scheduled=True))
    assert align([plan.find_kernel(name) for name in ran], plan.launchers["main"]) == truth
