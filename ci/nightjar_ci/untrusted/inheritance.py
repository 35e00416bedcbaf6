"""The environment variables that foreign code inherits: jobs, environment builds, tests of a bisection.

In: the caller's variables and the names that a matrix adds. Out: the inherited ones. A pattern never matches a name
that looks like a secret, nor a value with a user name or password; docs/reference/environment.md has the list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

ALLOWED = (
    # the user and the machine
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "CI"),
    *("TMPDIR", "TMP", "TEMP", "XDG_*", "KRB5CCNAME"),
    # network
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_*", "UV_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    # Python and its environments
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "COVERAGE_*", "COV_CORE_*"),
    # compilers, libraries and the module system of a cluster
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "PKG_CONFIG_*"),
    *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "MAX_JOBS", "CMAKE_*", "CCACHE_*"),
    *("NVCC_*", "HERMETIC_*", "CARGO_*", "RUSTUP_*", "SOURCE_DATE_EPOCH"),
    *("MODULEPATH", "MODULESHOME", "LOADEDMODULES", "LMOD_*"),
    # JAX, XLA and accelerators
    *("JAX_*", "XLA_*", "TF_*", "PJRT_*", "TPU_*", "LIBTPU_*", "ENABLE_PJRT_COMPATIBILITY"),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "CUBLASLT_*", "CUTLASS_*", "CUTE_*", "NVIDIA_*", "NVTE_*", "NVTX_*", "NSYS_*"),
    *("TRITON_*", "ROCM_*", "ROCR_*", "HIP_*", "HSA_*"),
    # processes that work together
    *("NCCL_*", "NVSHMEM_*", "RCCL_*", "UCX_*", "UCC_*", "FI_*", "IBV_*", "GLOO_*", "GRPC_*"),
    *("OMPI_*", "PMI_*", "PMIX_*", "PRTE_*", "MPICH_*", "SLURM_*"),
    # threads and memory
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "NUMEXPR_*", "TBB_*"),
    *("MALLOC_*", "TCMALLOC_*", "GLIBC_TUNABLES"),
    # libraries of the field
    *("FLAX_*", "OPTAX_*", "ORBAX_*", "EQX_*", "KERAS_*", "TFDS_*", "HF_*", "TRANSFORMERS_*", "TOKENIZERS_PARALLELISM"),
    *("ABSL_*", "GLOG_*", "MPLBACKEND", "MPLCONFIGDIR"),
    # ours, and JAX's flag whose name only looks like a key
    *("NIGHTJAR_IMAGE", "NIGHTJAR_CACHE_DIR", "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY"),
)
# For uv and pip to fetch packages: an index or a proxy may need a password, and a build backend can read it.
FETCHING = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_INDEX_URL"),
    *("PIP_EXTRA_INDEX_URL", "UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
NEVER = ("TF_VAR_*",)  # Terraform's: they start like TensorFlow's and are often secrets
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_ENDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CRED", "COOKIE", "APIKEY", "JWT")
_SECRET_WORDS = frozenset(("KEY", "AUTH", "PASS", "PAT", "DSN", "PW", "PWD", "BEARER", "NETRC", "WEBHOOK"))
_CREDENTIALS = re.compile(r"//[^/\s]*@|^[^/\s@]+:[^/\s@]+@")  # scheme://user:password@host, user:password@host


def inherit(environ: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """The variables that pass to foreign code.

    Args:
        names: names in full and patterns that a matrix adds (`pass_env`, `secrets`).

    >>> inherit({"PATH": "/bin", "JAX_PLATFORMS": "cpu", "JAX_TOKEN": "x", "MINE": "1"}, ["MINE"])
    {'PATH': '/bin', 'JAX_PLATFORMS': 'cpu', 'MINE': '1'}
    """
    return {
        name: value for name, value in environ.items() if _passes(name, value, ALLOWED) or _is_added(name, value, names)
    }


def select(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _is_added(name, value, names)}


def inherit_for_fetching(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a command that fetches packages, with the passwords of indexes and proxies."""
    fetching = {name: value for name, value in environ.items() if _matches(name, FETCHING)}
    return {**inherit(environ), **fetching}


def looks_secret(name: str) -> bool:
    """Whether a variable probably holds a secret, judged by its name.

    >>> [looks_secret(name) for name in ("GITHUB_TOKEN", "AWS_ACCESS_KEY_ID", "DATABASE_URL", "SLACK_WEBHOOK_URL")]
    [True, True, True, True]
    >>> [looks_secret(name) for name in ("TOKENIZERS_PARALLELISM", "PWD", "XLA_FLAGS", "KEYBOARD", "AUTHOR")]
    [False, False, False, False, False]
    """
    words = [word.rstrip("0123456789") for word in name.upper().split("_")]
    if "DATABASE_URL" in name.upper() or (name != "PWD" and _SECRET_WORDS.intersection(words)):
        return True
    return any(word.removesuffix("S").endswith(_SECRET_ENDS) for word in words if word)


def check_passed(name: str) -> str:
    if not _NAME.fullmatch(name.removesuffix("*")):
        raise ValueError("expected the name of a variable, or a prefix and '*', such as MYLAB_*")
    if not name.endswith("*") and looks_secret(name):
        raise ValueError(f"{name} looks like a secret: name it in 'secrets', whose values are masked")
    return name


def check_secret(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("expected the name of an environment variable, such as HF_TOKEN; its value stays outside")
    return name


def _is_added(name: str, value: str, names: Iterable[str]) -> bool:
    return any(name == added or ("*" in added and _passes(name, value, (added,))) for added in names)


def _passes(name: str, value: str, patterns: Iterable[str]) -> bool:
    """Whether a variable matches: by its full name, or by a pattern if it does not look like a secret."""
    if _CREDENTIALS.search(value) or _matches(name, NEVER):
        return False
    return any(name == pattern or (fnmatchcase(name, pattern) and not looks_secret(name)) for pattern in patterns)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
