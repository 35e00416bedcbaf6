#!/usr/bin/env bash
# Runs in builder stages of the source image: JAX and XLA from their repositories, with the patches of /patches/jax and
# /patches/xla, built by JAX's own build/build.py, which fetches Bazel and, on amd64, its compiler.
#
#   jax-build.sh sources        /source/jax and /source/xla. JAX_REF: a commit, branch or tag of JAX. XLA_REF: one of XLA; empty
#                               for the commit that this JAX pins
#   jax-build.sh wheels FLAVOR  /wheels: jax and jaxlib and, for cuda12 and cuda13, the plugin and PJRT
#
# JAX_REPOSITORY and XLA_REPOSITORY are other addresses than GitHub's; BAZEL_OPTIONS, one more option of Bazel.
set -euo pipefail
umask 022

# shellcheck source=docker/git-sources.sh
. "$(dirname "$0")/git-sources.sh"
readonly SOURCE=${SOURCE:-/source}

# JAX's tree names XLA's commit in a file that has moved once.
find_xla_commit() {
  local file commit
  for file in revision workspace; do
    commit=$(sed -nE 's/^ *XLA_COMMIT *= *"([0-9a-f]{40})".*/\1/p' "$SOURCE/jax/third_party/xla/$file.bzl" 2>/dev/null || true)
    [ -z "$commit" ] || break
  done
  [ -n "$commit" ] || fail "JAX's tree names no commit of XLA (third_party/xla/revision.bzl)." "set XLA_REF"
  echo "$commit"
}

fetch_sources() {
  local commit
  fetch_commit "${JAX_REPOSITORY:-https://github.com/jax-ml/jax}" "${JAX_REF:?a commit or tag of JAX}" "$SOURCE/jax"
  commit=${XLA_REF:-$(find_xla_commit)}
  fetch_commit "${XLA_REPOSITORY:-https://github.com/openxla/xla}" "$commit" "$SOURCE/xla"
  apply_patches jax "$SOURCE/jax"
  apply_patches xla "$SOURCE/xla"
}

build_wheels() { # FLAVOR
  local wheels=jax,jaxlib options=()
  case $1 in
  cpu) ;;
  cuda12 | cuda13)
    wheels+=,jax-cuda-plugin,jax-cuda-pjrt
    options+=("--cuda_major_version=${1#cuda}")
    ;;
  *) fail "unknown flavour '$1': expected cpu, cuda12 or cuda13." "images build source --flavor cpu" ;;
  esac
  [ -z "${BAZEL_OPTIONS:-}" ] || options+=("--bazel_options=$BAZEL_OPTIONS")
  if [ "$(uname -m)" != x86_64 ]; then # the only machine for which the build brings its compiler
    apt-get -qq -o Dpkg::Use-Pty=0 update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends clang lld
  fi
  cd "$SOURCE/jax"
  python3 build/build.py build "--wheels=$wheels" "--local_xla_path=$SOURCE/xla" "--output_path=${WHEELS:-/wheels}" "${options[@]}"
}

case $1 in
sources) fetch_sources ;;
wheels) build_wheels "$2" ;;
*) fail "unknown step '$1': expected sources or wheels." "read the head of docker/jax-build.sh" ;;
esac
