"""The doctor and the support matrix say the same of drivers and GPUs: the packages share no code, so this compares."""

from nightjar_ci.images.publish.support import DRIVER_FLOORS, GPU_ARCHITECTURES
from nightjar_models.doctor import checks


def test_driver_floors_and_gpu_architectures_are_the_same() -> None:
    assert {number: str(floor[0]) for number, floor in checks.DRIVER_FLOORS.items()} == DRIVER_FLOORS
    oldest = {number: f"sm_{major}{minor} and newer" for number, (major, minor) in checks.OLDEST_CAPABILITIES.items()}
    assert oldest == GPU_ARCHITECTURES
