"""Nightly images of a real registry, bisected in real containers."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.ci.bisect.test_command import answer
from tests.ci.executors.test_docker import real_image
from tests.ci.registries import run_registry
from tests.machine import asks

__all__ = ["real_image"]


NIGHTS = {"2026-11-01": 0, "2026-11-02": 0, "2026-11-03": 0, "2026-11-04": 1, "2026-11-05": 1}


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.fixture(scope="module")
@asks("docker", "registry")
def repository(real_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Five nights of images, the last two slower; the first two nights pushed the same one. None is kept here."""
    with run_registry(tmp_path_factory.mktemp("registry")) as registry:
        name = f"{registry.host}/nightly"
        container = docker("container", "create", "--entrypoint", "/bin/sh", real_image)
        for date, level in NIGHTS.items():
            tag = f"{name}:toy-{date}"
            if date == "2026-11-02":
                docker("tag", f"{name}:toy-2026-11-01", tag)
            else:
                docker("commit", "--change", f"ENV LEVEL={level}", "--change", f"ENV DATE={date}", container, tag)
            docker("push", "--quiet", tag)
        docker("container", "rm", container)
        docker("image", "rm", "--force", *(f"{name}:toy-{date}" for date in NIGHTS))
        yield name
        left = docker("image", "ls", "--quiet", "--no-trunc", "--filter", f"reference={name}").split()
        docker("image", "rm", "--force", *dict.fromkeys(left))


ENDS = ("--good", "2026-11-01", "--bad", "2026-11-05")


def test_images_are_bisected_by_exit_code_in_containers(repository: str) -> None:
    found = answer("--images", f"{repository}:toy", *ENDS, "--", "/bin/sh", "-c", "exit $LEVEL")
    assert (found["culprits"], found["exit_code"]) == (["2026-11-04"], 0), found
    assert found["notes"] == ["2026-11-02 is the same build as 2026-11-01."]
    lines = [found[side]["reproduce"] for side in ("before", "after")]
    codes = [subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False).returncode for line in lines]
    assert codes == [0, 1]


@pytest.mark.slow
def test_images_are_bisected_by_a_metric_and_the_fix_is_found_too(repository: str) -> None:
    printing = ("--metric", "t", "--", "/bin/sh", "-c", 'echo "t=$((LEVEL + 1)).$(($(id -u) + 1))"')
    assert answer("--images", repository, *ENDS, *printing)["culprits"] == ["2026-11-04"]
    fix = answer("--images", repository, "--good", "2026-11-05", "--bad", "2026-11-01", "--better", "higher", *printing)
    assert (fix["find"], fix["culprits"]) == ("fix", ["2026-11-04"])


def test_an_image_without_the_program_cannot_tell(repository: str) -> None:
    found = answer("--images", repository, *ENDS, "--", "no-such-program")
    assert (found["kind"], found["exit_code"]) == ("unbuildable", 4)
    assert {probe["outcome"] for probe in found["probes"]} == {"cannot_tell"}
