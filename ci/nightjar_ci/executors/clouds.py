"""The networks of Kubernetes services in clouds, as settings of the pods. Data, no logic.

Each holds for nodes with eight GPUs. Other needs of a node (drivers, device plugins, networks) are on the cloud's page
in docs/clouds, with requirements of the image. A site with other nodes changes single values by its patch file.

Source: docs.aws.amazon.com/eks/latest/userguide/node-efa.html; cloud.google.com/kubernetes-engine/docs/how-to
(GPUDirect RDMA, GPUDirect-TCPX) and GoogleCloudPlatform/container-engine-accelerators (gpudirect-rdma, gpudirect-tcpx);
learn.microsoft.com/azure/aks/gpu-cluster; oracle-quickstart/oci-hpc-oke.
"""

from __future__ import annotations

import json

from nightjar_ci.executors.kubernetes import Fabric, Sidecar

_GKE_INTERFACES = [
    {"interfaceName": "eth0", "network": "default"},
    *({"interfaceName": f"eth{number + 2}", "network": f"rdma-{number}"} for number in range(8)),
]
_TCPX_INTERFACES = [
    {"interfaceName": "eth0", "network": "default"},
    *({"interfaceName": f"eth{number}", "network": f"vpc{number}"} for number in range(1, 5)),
]
_TCPX_SOCKETS = "/run/tcpx"
_TCPX_DEVICES = [*(f"/dev/nvidia{number}" for number in range(8)), "/dev/nvidiactl", "/dev/nvidia-uvm"]

CLOUDS = {
    "eks": Fabric(  # p5.48xlarge: 32 EFA interfaces; the image holds libfabric and aws-ofi-nccl
        requests={"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"},
        selector={"node.kubernetes.io/instance-type": "p5.48xlarge"},
        env={"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "^docker,lo,veth"},
    ),
    "gke": Fabric(selector={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
    "gke-rdma": Fabric(  # a3-ultragpu-8g: RoCE; NCCL's plugin is installed on the node
        selector={"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"},
        annotations={
            "networking.gke.io/default-interface": "eth0",
            "networking.gke.io/interfaces": json.dumps(_GKE_INTERFACES),
        },
        env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/gib/lib64", "NCCL_NET": "gIB"},
        host_paths={
            "/usr/local/nvidia": "/home/kubernetes/bin/nvidia",
            "/usr/local/gib": "/home/kubernetes/bin/gib",
        },
    ),
    "gke-tcpx": Fabric(  # a3-highgpu-8g: GPUDirect-TCPX; NCCL's plugin is installed on the node
        selector={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
        annotations={
            "networking.gke.io/default-interface": "eth0",
            "networking.gke.io/interfaces": json.dumps(_TCPX_INTERFACES),
            "devices.gke.io/container.tcpx-daemon": "".join(f"- path: {device}\n" for device in _TCPX_DEVICES),
        },
        env={
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
            "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
            "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": _TCPX_SOCKETS,
            "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
            "NCCL_CROSS_NIC": "0",
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_NET_GDR_LEVEL": "PIX",
            "NCCL_P2P_PXN_LEVEL": "0",
        },
        host_paths={"/usr/local/nvidia/lib64": "/home/kubernetes/bin/nvidia/lib64"},
        capabilities=("IPC_LOCK",),
        sidecar=Sidecar(
            name="tcpx-daemon",
            image="us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.15",
            command=(
                *("/tcpgpudmarxd/build/app/tcpgpudmarxd", "--gpu_nic_preset", "a3vm", "--gpu_shmem_type", "fd"),
                *("--uds_path", _TCPX_SOCKETS, "--setup_param=--verbose 128 2 0"),
            ),
            shared=_TCPX_SOCKETS,
            capabilities=("NET_ADMIN",),
            host_paths={
                "/usr/local/nvidia/lib64": "/home/kubernetes/bin/nvidia/lib64",
                "/hostsysfs": "/sys",
                "/hostprocsysfs": "/proc/sys",
            },
            env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"},
        ),
    ),
    "aks": Fabric(  # Standard_ND96isr_H100_v5: InfiniBand as NVIDIA's network operator names it by default
        requests={"rdma/ib": "8"},
        selector={"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"},
    ),
    "oke": Fabric(  # BM.GPU.H100.8: RoCE by the host's network; virtual functions are not supported there
        selector={"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
        host_network=True,
        env={"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "41", "NCCL_IB_SL": "0", "NCCL_SOCKET_IFNAME": "eth0"},
    ),
}
