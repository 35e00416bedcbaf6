"""GPUs to compile for, from `targets/*.toml` and `software.toml`, which name the source of each fact.

In: the name of a target such as `h100`, or of several devices such as `h100x16`. Out: a `Target`, and the text protobuf
that XLA takes in place of a device.

The text has the fields that XLA queries on a real device and that jaxlib 0.10 knows. The memory's clock, the shared
memory reserved per block, the maximum number of blocks per core and the granularity of collective memory came with
0.11, and XLA rejects an unknown field.

Source: openxla/xla, xla/stream_executor/device_description.proto (GpuTargetConfigProto)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from nightjar_models.errors import InputError, did_you_mean

SCHEMA = "nightjar.target/1"

# Numbers of xla.PrimitiveType whose matrix products run at the rate of each kind of element.
_MATRIX_KEYS = {
    "f64": (12,),
    "tf32": (11,),
    "bf16": (16,),
    "f16": (10,),
    "s8": (2, 6),
    "f8": (19, 20, 23, 24, 25, 28, 29, 33, 35, 36),  # the last two have six bits
    "f4": (32,),
}
_SCALAR_KEYS = {"s32": (4, 8), "f16": (10,), "f32": (11,), "f64": (12,), "bf16": (16,)}
_LIMITS = {  # the same for compute capabilities 8.0 to 10.0 (CUDA C++ Programming Guide)
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "device_address_bits": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU in a host, by its data sheet; rates are peaks of one device in one direction.

    Attributes:
        name: JAX's `device_kind`.
        compute_capability: such as `9.0a`.
        flops_per_s: of dense matrix products by kind of element (tf32, bf16, f8, ...), and `f32` for other arithmetic.
        memory_bytes: device memory available to programs.
        network_bytes_per_s: one device's share of the network between hosts.
        text: the description for XLA.
    """

    short: str
    name: str
    compute_capability: str
    flops_per_s: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    devices_per_host: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Several devices of one kind; hosts are filled one after the other."""

    target: Target
    devices: int

    @property
    def topology(self) -> str:
        """XLA's spelling: slices x hosts x devices per host."""
        per_host = min(self.devices, self.target.devices_per_host)
        return f"1x{self.devices // per_host}x{per_host}"

    def __str__(self) -> str:
        return f"{self.target.short}x{self.devices}"


def list_targets() -> list[str]:
    entries = files("nightjar_models.hardware").joinpath("targets").iterdir()
    return sorted(path.name.removesuffix(".toml") for path in entries if path.name.endswith(".toml"))


def read_target(name: str) -> Target:
    """The target of that name."""
    names = list_targets()
    if name not in names:
        raise InputError(f"--target {name}: expected one of {', '.join(names)}.", did_you_mean(name, names))
    path = files("nightjar_models.hardware").joinpath("targets", f"{name}.toml")
    facts = tomllib.loads(path.read_text(encoding="utf-8"))
    software = read_software()
    units = facts["matrix_units"]
    per_fma = 2 * facts["cores"] * units["per_core"] * units["clock_ghz"] * 1e9
    rates = {element: per_fma * count for element, count in units["fma_per_clock"].items()}
    rates["f64"] *= units["f64_clock_ghz"] / units["clock_ghz"]
    rates["f32"] = 2 * facts["cores"] * facts["fpus_per_core"] * facts["clock_ghz"] * 1e9
    return Target(
        short=name,
        name=facts["name"],
        compute_capability=facts["compute_capability"],
        flops_per_s=rates,
        memory_bytes=facts["memory_bytes"],
        memory_bytes_per_s=facts["memory_bytes_per_s"],
        nvlink_bytes_per_s=facts["nvlink_bytes_per_s"],
        network_bytes_per_s=facts["network_bytes_per_s"],
        devices_per_host=facts["devices_per_host"],
        text=render_config(facts, software),
    )


def parse_cluster(text: str) -> Cluster:
    """Parses a target such as `h100x8`; without a number it is one device.

    >>> parse_cluster("h100x16").topology, parse_cluster("a100").devices
    ('1x2x8', 1)
    """
    match = re.fullmatch(r"([a-z][a-z0-9]*?)(?:x([1-9][0-9]{0,5}))?", text)
    if match is None:
        raise InputError(f"--target {text}: expected a GPU and a number of devices, such as h100x8.")
    target, devices = read_target(match[1]), int(match[2] or 1)
    if devices > target.devices_per_host and devices % target.devices_per_host:
        raise InputError(
            f"--target {text}: expected at most {target.devices_per_host} devices, or a multiple of them: "
            f"a host has {target.devices_per_host}.",
            f"use {target.short}x{-(-devices // target.devices_per_host) * target.devices_per_host}",
        )
    return Cluster(target=target, devices=devices)


def read_software() -> dict[str, str]:
    """Versions of driver, runtime, cudnn and cub, each of three numbers, that the compiler assumes on a device."""
    path = files("nightjar_models.hardware").joinpath("software.toml")
    facts = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: facts[name] for name in ("driver", "runtime", "cudnn", "cub")}


def render_config(facts: Mapping[str, object], software: Mapping[str, str]) -> str:
    """The GpuTargetConfigProto of a device with that software, as text."""
    f: Mapping[str, object] = facts
    units: Mapping[str, object] = facts["matrix_units"]  # type: ignore[assignment]
    rates: Mapping[str, int] = units["fma_per_clock"]  # type: ignore[assignment]
    scalars: Mapping[str, tuple[int, int]] = facts["scalar_units"]  # type: ignore[assignment]
    capability = str(f["compute_capability"])
    major, minor = capability.rstrip("a").split(".")
    extension = "NONE"
    if capability.endswith("a"):
        extension = "ACCELERATED_FEATURES"
    limits = " ".join(f"{name}: {value}" for name, value in _LIMITS.items())
    matrix = " ".join(
        _render_rate(key, units["f64_clock_ghz" if element == "f64" else "clock_ghz"], units["per_core"], count)
        for element, count in rates.items()
        for key in _MATRIX_KEYS[element]
    )
    scalar = " ".join(
        _render_rate(key, f["clock_ghz"], per_core, operations)
        for element, (per_core, operations) in scalars.items()
        for key in _SCALAR_KEYS[element]
    )
    cudnn = software["cudnn"].split(".")
    clocks = [round(float(str(f[key])) * 1e6) for key in ("clock_ghz", "memory_clock_ghz")]
    model = (
        f"sm_{capability} with {f['memory_bytes']}B RAM, {f['cores']} cores, {clocks[0]}KHz clock, "
        f"{clocks[1]}KHz mem clock, {f['l2_bytes']}B L2$"
    )
    return f"""gpu_device_info {{
  {limits}
  core_count: {f["cores"]} fpus_per_core: {f["fpus_per_core"]} clock_rate_ghz: {f["clock_ghz"]}
  memory_bandwidth: {float(str(f["memory_bytes_per_s"])):.0f} device_memory_size: {f["memory_bytes"]}
  l2_cache_size: {f["l2_bytes"]} shared_memory_per_core: {f["shared_memory_per_core_bytes"]}
  shared_memory_per_block_optin: {f["shared_memory_per_block_bytes"]}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  scalar_unit_description {{ {scalar} }}
  matrix_unit_description {{ {matrix} }}
  device_interconnect_info {{ active_links: {f["nvlink_links"]} }}
  pcie_bandwidth: {f["pcie_bytes_per_s"]} ecc_enabled: true
  device_vendor: "NVIDIA Corporation" name: "{f["name"]}" model_str: "{model}"
  platform_version: "Compute Capability {capability}"
  driver_version: "{software["driver"]}"
  runtime_version: "{software["runtime"]}" compile_time_toolkit_version: "{software["runtime"]}"
  dnn_version: "{software["cudnn"]}" cub_version: "{software["cub"]}"
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
device_description_str: "{f["name"]}"
"""


def _render_rate(key: int, clock: object, units: object, operations: int) -> str:
    value = f"clock_rate_ghz: {clock} units_per_core: {units} ops_per_clock: {operations}"
    return f"rate_infos {{ key: {key} value {{ {value} }} }}"
