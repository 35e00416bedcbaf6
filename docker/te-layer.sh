#!/usr/bin/env bash
# Runs in builder stages of the te image.
#
#   te-layer.sh compiler                   the C++ compiler of the OS
#   te-layer.sh wheel BUILD_LOCK SOURCE    TransformerEngine's JAX extension, compiled from its hashed source into /wheels
#   te-layer.sh links                      /target: /usr/local/cuda as a farm of links to the NVIDIA wheels, and the loader's
#                                          cache of it (TransformerEngine looks for libraries by names that wheels lack)
set -euo pipefail
umask 022

readonly PREFIX=/opt/nightjar
packages=("$PREFIX"/lib/python3*/site-packages)

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

link_libraries() {
  local farm=/target/usr/local/cuda library name
  mkdir -p "$farm/lib64" "$farm/bin" /target/etc/ld.so.conf.d
  for library in "${packages[0]}"/nvidia/*/lib/*.so*; do
    name=$(basename "$library")
    ln -sf "$library" "$farm/lib64/$name"
    ln -sf "$library" "$farm/lib64/${name%%.so*}.so"
  done
  for library in "${packages[0]}"/nvidia/*/bin/*; do ln -sf "$library" "$farm/bin/"; done
  ln -s "${packages[0]}"/nvidia/cuda_runtime/include "$farm/include" 2>/dev/null || true
  echo /usr/local/cuda/lib64 >/target/etc/ld.so.conf.d/nightjar-cuda.conf
  cp -a /target/usr/local/cuda /usr/local/
  cp /target/etc/ld.so.conf.d/nightjar-cuda.conf /etc/ld.so.conf.d/
  ldconfig
  cp /etc/ld.so.cache /target/etc/
  find /target -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
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
links)
  link_libraries
  ;;
*)
  echo "error: te-layer.sh: unknown step '$1': expected compiler, wheel or links." >&2
  exit 2
  ;;
esac
