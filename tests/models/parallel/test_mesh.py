"""A mesh is read from text, and the user's XLA flags survive it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import MeshShape, parse_mesh, render_xla_flags


def test_the_documented_mesh_has_eight_devices() -> None:
    shape = parse_mesh("dp2.fsdp2.tp2")
    assert (shape, shape.size) == (MeshShape(dp=2, fsdp=2, tp=2), 8)


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 512))
def test_a_mesh_survives_its_way_through_text(dp: int, fsdp: int, tp: int) -> None:
    shape = MeshShape(dp=dp, fsdp=fsdp, tp=tp)
    assert parse_mesh(str(shape)) == shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp2.fsp2", "part 'fsp2': .*did you mean 'fsdp'"),
        ("dp0", "part 'dp0'"),
        ("dp", "part 'dp'"),
        ("", "part ''"),
        ("dp2.dp2", "axis 'dp' is named twice"),
    ],
)
def test_a_wrong_mesh_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_mesh(text)


def test_flags_are_appended_only_where_needed() -> None:
    own = "--xla_cpu_enable_fast_math=false"
    assert render_xla_flags(own, 1) == own
    assert render_xla_flags("", 8) == "--xla_force_host_platform_device_count=8"
    assert render_xla_flags(own, 8) == f"{own} --xla_force_host_platform_device_count=8"
    chosen = "--xla_force_host_platform_device_count=16"
    assert render_xla_flags(chosen, 8) == chosen
