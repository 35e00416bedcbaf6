#!/usr/bin/env bash
# Runs in builder stages of the te image.
#
#   te-layer.sh compiler                   the C++ compiler of the OS
#   te-layer.sh wheel BUILD_LOCK SOURCE    TransformerEngine's JAX extension, compiled from its hashed source into /wheels
set -euo pipefail
umask 022

readonly PREFIX=/opt/nightjar

compile() { # BUILD_LOCK SOURCE
  if [ -f /run/secrets/index ]; then
    # shellcheck source=/dev/null
    . /run/secrets/index
  fi
  export UV_LINK_MODE=copy PIP_DISABLE_PIP_VERSION_CHECK=1
  /tools/bin/uv pip install --quiet --python "$PREFIX/bin/python" --no-deps --require-hashes -r "$1"
  NVTE_BUILD_USE_NVIDIA_WHEELS=1 NVTE_FRAMEWORK=jax MAX_JOBS=2 PYTHONHASHSEED=0 \
    /tools/bin/pip --python "$PREFIX/bin/python" wheel --quiet --no-cache-dir --no-deps --no-build-isolation \
    --require-hashes --requirement "$2" --wheel-dir /wheels
}

case $1 in
compiler)
  mapfile -t of_the_day < <(bash "$(dirname "$0")/apt-day.sh")
  apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" update
  DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" install -y --no-install-recommends g++ python3-dev
  ;;
wheel)
  compile "$2" "$3"
  ;;
*)
  echo "error: te-layer.sh: unknown step '$1': expected compiler or wheel." >&2
  exit 2
  ;;
esac
