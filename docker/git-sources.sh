# shellcheck shell=bash
# Functions of scripts that run in builder stages, for sources from Git and patches for them (docker/patches). They end with 3
# and a hint where a repository does not answer or a patch does not fit.

fail() { # MESSAGE HINT
  printf 'error: %s: %s\nHint: %s\n' "$(basename "$0")" "$1" "$2" >&2
  exit 3
}

# Without its history.
fetch_commit() { # URL COMMIT_OR_TAG FOLDER
  [ -z "${SSL_CERT_FILE:-}" ] || export GIT_SSL_CAINFO=$SSL_CERT_FILE
  git init --quiet "$3"
  git -C "$3" fetch --quiet --depth 1 "$1" "$2" ||
    fail "$1 has no commit $2, or does not answer." "can the build reach it? A proxy is taken from this machine's variables"
  git -C "$3" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
}

apply_patches() { # PACKAGE FOLDER
  local patch
  for patch in "${PATCHES:-/patches}/$1"/*.patch; do
    [ -e "$patch" ] || continue
    git -C "$2" apply --verbose "$patch" || fail "the sources of $1 do not take $(basename "$patch")." "rebase the patch"
  done
}
