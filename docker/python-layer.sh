#!/usr/bin/env bash
# Runs in builder stages: leaves one layer of Python packages under /target, the same bytes whenever one lock is built.
#
#   python-layer.sh tools LOCK             uv and pip of a hashed lock in /tools
#   python-layer.sh split LOCK [BELOW...]  /layers/LAYER.txt for each LAYER of layers.txt: the entries of /locks/LOCK.txt that
#                                          are its, without those of the locks below. EXPECTED_SHA256, where set, is checked;
#                                          CUDA=image leaves out what an NVIDIA image has
#   python-layer.sh install LIST           the packages of a part of a lock; commits, which have no hash but their own, last.
#                                          /patches/PACKAGE/*.patch are applied, in their order
#   python-layer.sh source LOCK FOLDER...  source trees, built with the build backend of a hashed lock
#   python-layer.sh wheels FOLDER          wheels that an earlier stage built
#
# A part of a lock that a night leaves as it was is the same file, so its layer comes from the cache. `--mount=type=secret,
# id=index` may hold `export UV_DEFAULT_INDEX=...` and the like; none of it stays in a layer.
set -euo pipefail
umask 022

readonly PREFIX=/opt/nightjar
readonly LAYERS=/usr/local/share/nightjar/layers.txt
if [ -f /run/secrets/index ]; then
  # shellcheck source=/dev/null
  . /run/secrets/index
fi
export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { # CODE MESSAGE HINT
  printf 'error: python-layer.sh: %s\nHint: %s\n' "$2" "$3" >&2
  exit "$1"
}

names() { # LOCK...
  [ $# = 0 ] || sed -nE 's/^([A-Za-z0-9._-]+)(==| @ ).*/\1/p' "$@" | sort -u
}

layer_of() { # NAME
  local layer patterns pattern
  while read -r layer patterns; do
    case $layer in '#'* | '') continue ;; esac
    set -f
    for pattern in $patterns; do
      # shellcheck disable=SC2254  # a pattern
      case $1 in $pattern) echo "$layer" && return ;; esac
    done
  done <"$LAYERS"
}

# Comments are dropped: why a package is there changes more often than the package.
split_lock() { # LOCK [BELOW...]
  local lock=/locks/$1.txt below=() name
  for name in "${@:2}"; do below+=("/locks/$name.txt"); done
  [ -z "${EXPECTED_SHA256:-}" ] || echo "$EXPECTED_SHA256  $lock" | sha256sum --check --status ||
    fail 3 "$1.txt of the build context is not that of the checkout." "touch docker/locks/*.txt, build again"
  mkdir -p /layers
  sed -nE 's/^([^# ]\S*) .*/\1/p' "$LAYERS" | while read -r layer; do : >"/layers/$layer.txt"; done
  comm -23 <(names "$lock") <(names "${below[@]}") | while read -r name; do
    awk -v name="$name" '/^[A-Za-z0-9]/ { split($1, part, "=="); keep = part[1] == name } keep && !/^ +#/' "$lock" \
      >>"/layers/$(layer_of "$name").txt"
  done
  [ "${CUDA:-wheels}" = wheels ] || for name in cuda-{core,blas,sparse} cudnn nccl nvshmem; do : >"/layers/$name.txt"; done
}

install_packages() {
  mkdir -p /target
  /tools/bin/uv pip install --quiet --python "$PREFIX/bin/python" --prefix "/target$PREFIX" --no-deps "$@"
}

# A commit (`NAME @ git+ADDRESS@COMMIT`, of `images bump --nightly`) is built here, with the build tools of its own choice.
install_list() { # LIST
  local part=/tmp/list
  mkdir -p /target
  grep -vE ' @ git[+]' "$1" | split_nightly "$part-hashed" "$part-nightly" || true
  grep -E ' @ git[+]' "$1" >"$part-commits" || true
  [ ! -s "$part-hashed" ] || install_packages --require-hashes -r "$part-hashed"
  [ ! -s "$part-nightly" ] || install_nightly -r "$part-nightly"
  if [ -s "$part-commits" ]; then
    add_git
    install_packages -r "$part-commits"
  fi
  patch_packages "$1"
}

# Patches of docker/patches, for packages of this list. A pull request also changes tests and documents, which no wheel has:
# only the files of the package's own modules are changed.
patch_packages() { # LIST
  local name record patch modules changed path
  for name in $(names "$1"); do
    for patch in "${PATCHES:-/patches}/$name"/*.patch; do
      [ -e "$patch" ] || continue
      command -v git >/dev/null || add_git
      record=$(echo "/target$PREFIX"/lib/python3*/site-packages/"${name//-/_}"-*.dist-info/RECORD)
      mapfile -t modules < <(cut -d/ -f1 "$record" | grep -E '^[A-Za-z0-9_]+$' | sort -u | sed 's|.*|--include=&/*|')
      cd "$(dirname "$record")/.."
      changed=$(git apply --numstat "${modules[@]}" "$patch" | cut -f3)
      [ -n "$changed" ] || fail 3 "$(basename "$patch") changes no file that $name has installed." "see docker/patches/README.md"
      git apply "${modules[@]}" "$patch" || fail 3 "$name does not take $(basename "$patch")." "rebase or remove the patch"
      for path in $changed; do # without a digest: the file is no longer the wheel's
        awk -F, -v path="$path" '$1 != path' "$record" >"$record.new"
        [ ! -e "$path" ] || echo "$path,," >>"$record.new"
        mv "$record.new" "$record"
      done
    done
  done
}

# JAX's nightly wheels (`jaxlib==0.13.0.dev20261120`) are in an index of their own, which is asked for nothing else.
split_nightly() { # RELEASES NIGHTLY; a lock on stdin
  : >"$1" && : >"$2"
  awk -v releases="$1" -v nightly="$2" '
    /^[A-Za-z0-9]/ { file = $1 ~ /==.*[.]dev20[0-9][0-9][0-9][0-9][0-9][0-9]$/ ? nightly : releases }
    file { print >file }'
}

install_nightly() ( # in a process of its own, whose index is no other's
  [ -n "${NIGHTJAR_NIGHTLY_INDEX:-}" ] ||
    fail 3 "the lock has nightly wheels of JAX, and the build has no index of them." \
      "set NIGHTJAR_NIGHTLY_INDEX to its http or https URL"
  unset UV_INDEX UV_EXTRA_INDEX_URL
  export UV_DEFAULT_INDEX=$NIGHTJAR_NIGHTLY_INDEX
  install_packages --require-hashes "$@"
)

add_git() {
  apt-get -qq -o Dpkg::Use-Pty=0 update
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends git
  [ -z "${SSL_CERT_FILE:-}" ] || export GIT_SSL_CAINFO=$SSL_CERT_FILE
}

# A .pyc that names its source's time would differ by build, and be stale once times are fixed: it names a hash instead,
# and Python never checks it (importing JAX takes 0.9 s with it, 2.9 s without). A set in it is written in the order of
# its hashes, hence the seed. And whether two equal sets in it are one depends on the strings that the process has seen
# before, hence the same files in the same order for each process, however many run at once.
compile_files() { # FOLDER that becomes / of the image
  find "$1$PREFIX/lib" -name '*.py' -print0 | LC_ALL=C sort -z | PYTHONHASHSEED=0 xargs -0 --no-run-if-empty -n 200 -P "$(nproc)" \
    python3 -m compileall -q --invalidation-mode unchecked-hash -s "$1" -p /
}

finish() { # FOLDER that becomes / of the image
  [ ! -d "$1$PREFIX/lib" ] || compile_files "$1"
  rm -f "$1$PREFIX/.lock" # uv's, and writable by everybody
  forget_times "$1"
  [ ! -d "$1$PREFIX" ] || share "$1$PREFIX"
  find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

# Whoever the container runs as adds packages: folders are sticky and open, as /tmp is, and a package of the image is
# replaced by its own user, whose it is, and by root.
share() { # FOLDER
  chmod -R a+rX "$1"
  chown -R nightjar:nightjar "$1"
  find "$1" -type d -exec chmod 1777 {} +
}

# What uv made of a source tree or of a wheel in a folder names when that was made.
forget_times() { # FOLDER
  local note
  find "$1" -path '*.dist-info/uv_cache.json' | while read -r note; do
    sed -i '/\/uv_cache[.]json,/d' "$(dirname "$note")/RECORD"
    rm "$note"
  done
}

case $1 in
tools)
  /usr/bin/python3 -m venv /tools
  /tools/bin/pip install --quiet --no-cache-dir --require-hashes -r "$2"
  ;;
split)
  split_lock "${@:2}"
  ;;
install)
  install_list "$2"
  finish /target
  ;;
source)
  install_packages --build-constraints "$2" "${@:3}"
  finish /target
  ;;
wheels)
  install_packages "$2"/*.whl
  finish /target
  ;;
*)
  fail 2 "unknown layer '$1': expected tools, split, install, source or wheels." "read the head of docker/python-layer.sh"
  ;;
esac
