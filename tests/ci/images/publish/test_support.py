"""The support matrix says what each night holds, and nothing of what it does not."""

from nightjar_ci.images.publish.nightly_index import NightlyImage, PlatformImage, make_index
from nightjar_ci.images.publish.support import describe_support, render_rows

CUDA = {
    "jax": "0.12.0",
    "jax-cuda12-plugin": "0.12.0",
    "nvidia-cuda-runtime-cu12": "12.9",
    "nvidia-cudnn-cu12": "9.12.0",
    "nvidia-cudnn-frontend": "1.0",
    "nvidia-nccl-cu12": "2.28",
    "transformer-engine": "2.9",
    "transformer-engine-cu12": "2.9",
    "nvidia-dali-cuda120": "2.4",
}


def night(name: str, date: str, packages: dict[str, str]) -> NightlyImage:
    image = PlatformImage(digest="sha256:0", size_bytes=1, layers=())
    return NightlyImage(
        name=name, date=date, reference="r@sha256:0", packages=packages, platforms={"linux/amd64": image}
    )


def test_each_night_is_a_row_and_the_newest_comes_first() -> None:
    thirteen = {"jax": "0.12.0", "jax-cuda13-plugin": "0.12.0", "nvidia-cuda-runtime": "13.0.1"}
    index = make_index(
        [
            night("jax-cpu", "2026-11-20", {"jax": "0.11"}),
            night("te-cuda12", "2026-11-21", CUDA),
            night("jax-cuda13", "2026-11-21", thirteen),
        ]
    )
    assert render_rows(describe_support(index)) == [
        ["2026-11-21", "jax-cuda13", "linux/amd64", "0.12.0", "13.0.1", "-", "-", "-", "-", "580", "sm_75 and newer"],
        [
            "2026-11-21",
            "te-cuda12",
            "linux/amd64",
            "0.12.0",
            "12.9",
            "9.12.0",
            "2.28",
            "2.9",
            "2.4",
            "525",
            "sm_75 and newer",
        ],
        ["2026-11-20", "jax-cpu", "linux/amd64", "0.11", "-", "-", "-", "-", "-", "-", "-"],
    ]
