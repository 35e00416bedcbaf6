#!/usr/bin/env bash
# Runs in a builder stage of the devel image: leaves under /target the sources of packages of the jax image, each in
# /opt/PACKAGE. Their modules lie where the jax image has them installed, and /opt/PACKAGE/MODULE is a link there: what one
# edits is what the next import sees, in environments on top, too. (A layer can replace no folder by a link.)
#
#   sources-layer.sh LOCK PACKAGE...    of the versions that /locks/LOCK.txt names; /below is /opt/nightjar of the jax image
#
# A release is its hashed source distribution, a commit (`NAME @ git+ADDRESS@COMMIT`) its tree. A nightly wheel of JAX has
# no source distribution: it is the tree of JAX_COMMIT. Patches of /patches/PACKAGE/*.patch are applied, in their order.
# Compiled files (.pyc) are checked against the hash of their source, so that an edit is noticed and two builds are equal.
set -euo pipefail
umask 022

# shellcheck source=docker/git-sources.sh
. "$(dirname "$0")/git-sources.sh"
readonly JAX_REPOSITORY=${JAX_REPOSITORY:-https://github.com/jax-ml/jax}
if [ -f /run/secrets/index ]; then
  # shellcheck source=/dev/null
  . /run/secrets/index
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1

entries() { # LOCK PACKAGE; without comments
  awk -v name="$2" '/^[A-Za-z0-9]/ { split($1, part, "=="); keep = part[1] == name } keep && !/^ +#/' "$1"
}

fetch_release() { # ENTRIES PACKAGE FOLDER
  local list=/tmp/list.txt packed=/tmp/packed
  echo "$1" >"$list"
  rm -rf "$packed"
  /tools/bin/pip download --quiet --no-cache-dir --no-deps --require-hashes --no-binary "$2" --dest "$packed" -r "$list"
  tar --extract --gzip --no-same-owner --strip-components 1 --directory "$3" --file "$(echo "$packed"/*.tar.gz)"
}

fetch_source() { # LOCK PACKAGE FOLDER
  local entry origin
  entry=$(entries "$1" "$2")
  mkdir -p "$3"
  case $entry in
  *" @ git+"*)
    origin=$(sed -nE 's/.* @ git[+](.*@[0-9a-f]{40}).*/\1/p' <<<"$entry" | head -n 1)
    fetch_commit "${origin%@*}" "${origin##*@}" "$3"
    ;;
  *.dev20[0-9][0-9][0-9][0-9][0-9][0-9]*) fetch_commit "$JAX_REPOSITORY" "${JAX_COMMIT:?the commit of the nightly wheel}" "$3" ;;
  "$2"==*) fetch_release "$entry" "$2" "$3" ;;
  *) fail "$(basename "$1") has no $2." "name packages of the lock" ;;
  esac
}

move_modules() { # PACKAGE FOLDER
  local installed packages path module
  installed=$(echo /below/lib/python3*/site-packages/"$1"-*.dist-info)
  packages=/opt/nightjar$(dirname "${installed#/below}")
  mkdir -p "/target$packages"
  cut -d, -f1 "$installed/RECORD" | grep -E '^[A-Za-z0-9_]+/.*[.]py$' | while read -r path; do
    [ -e "$2/$path" ] || fail "the sources of $1 lack $path, which the installed package has." "is the commit the wheel's?"
    echo "${path%%/*}"
  done | sort -u | while read -r module; do
    mv "$2/$module" "/target$packages/"
    ln -s "$packages/$module" "$2/$module"
  done
}

finish() { # FOLDER that becomes / of the image
  find "$1/opt/nightjar" -name '*.py' -print0 | LC_ALL=C sort -z | PYTHONHASHSEED=0 xargs -0 --no-run-if-empty -n 200 \
    python3 -m compileall -q --invalidation-mode checked-hash -s "$1" -p /
  chmod -R a+rX "$1/opt"
  chown -R nightjar:nightjar "$1/opt"/*
  find "$1/opt" -mindepth 1 -type d -exec chmod 1777 {} +
  find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

for package in "${@:2}"; do
  fetch_source "/locks/$1.txt" "$package" "/target/opt/$package"
  rm -rf "/target/opt/$package/.git"
  apply_patches "$package" "/target/opt/$package"
  move_modules "$package" "/target/opt/$package"
done
finish /target
