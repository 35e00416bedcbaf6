#!/usr/bin/env bash
# Runs in builder stages: leaves one layer of Python packages under /target (tools: under /skeleton), the same bytes
# whenever one lock is built.
#
#   python-layer.sh tools LOCK                       uv of a hashed lock in /tools; /opt/nightjar, empty, and so in /skeleton
#   python-layer.sh lock LOCK only|except WHICH...   packages of a hashed lock; WHICH is a name, or a lock for all its names
#   python-layer.sh source LOCK FOLDER...            source trees, built with the build backend of a hashed lock
#
# `--mount=type=secret,id=index` may hold `export UV_DEFAULT_INDEX=...` and the like; none of it stays in a layer.
set -euo pipefail
umask 022

readonly PREFIX=/opt/nightjar
if [ -f /run/secrets/index ]; then
  # shellcheck source=/dev/null
  . /run/secrets/index
fi
export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 PIP_DISABLE_PIP_VERSION_CHECK=1

names() { # WHICH...
  local which
  for which; do
    if [ -f "$which" ]; then
      sed -nE 's/^([A-Za-z0-9._-]+)==.*/\1/p' "$which"
    else
      echo "$which"
    fi
  done
}

# The entries of a lock whose name is (only) or is not (except) among the names given.
choose() { # LOCK only|except NAME...
  local lock=$1 wanted=$2
  shift 2
  awk -v names=" $* " -v only="$([ "$wanted" = only ] && echo 1 || echo 0)" '
    /^[A-Za-z0-9]/ { split($1, part, "=="); keep = (index(names, " " part[1] " ") > 0) == only }
    keep' "$lock"
}

install_packages() {
  /tools/bin/uv pip install --quiet --python "$PREFIX/bin/python" --prefix "/target$PREFIX" --no-deps "$@"
}

# A .pyc that names its source's time would differ by build, and be stale once times are fixed: it names a hash instead,
# and Python never checks it (importing JAX takes 0.9 s with it, 2.9 s without). A set in it is written in the order of
# its hashes, hence the seed.
finish() { # FOLDER that becomes / of the image
  PYTHONHASHSEED=0 python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$1" -p / "$1$PREFIX/lib"
  rm -f "$1$PREFIX/.lock" # uv's, and writable by everybody
  chmod -R a+rX "$1$PREFIX"
  find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

case $1 in
tools)
  mkdir /skeleton /target
  python3 -m venv /tools
  /tools/bin/pip install --quiet --no-cache-dir --require-hashes -r "$2"
  python3 -m venv --without-pip "$PREFIX"
  cp -a --parents "$PREFIX" /skeleton
  finish /skeleton
  ;;
lock)
  mapfile -t which < <(names "${@:4}")
  choose "$2" "$3" "${which[@]}" >/tmp/chosen.txt
  install_packages --require-hashes -r /tmp/chosen.txt
  finish /target
  ;;
source)
  install_packages --build-constraints "$2" "${@:3}"
  finish /target
  ;;
*)
  echo "error: python-layer.sh: unknown layer '$1': expected tools, lock or source." >&2
  exit 2
  ;;
esac
