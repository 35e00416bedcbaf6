#!/usr/bin/env bash
# Makes the ground floor of the image tree where no registry is reached: a minimal Debian with the packages of
# os-packages.txt, from the mirror that this machine's apt uses, imported as nightjar/ground-floor:SUITE. Root, or a sudo
# that asks for no password; Debian or Ubuntu, a Docker engine (engine.sh); installs mmdebstrap where it is missing.
# About 45 s and 150 MB.
#
# DEBIAN_SNAPSHOT, an archive of Debian's past (http://snapshot.debian.org/archive), gives the packages of DEBIAN_DAY (of
# versions.json, or of the environment): one that is there is kept only if its label names that day.
#
# IMAGE_ARCH (amd64, arm64) gives it for another architecture than this machine's, tagged SUITE-ARCH as the bake file asks
# for it; that needs an emulator in the kernel (qemu-user-static and binfmt-support of Debian).
#
#   docker/ground-floor.sh [--force]     makes it unless the tag exists; --force makes it anew
#
# Two runs from one state of the mirror give the same image: no log, cache, lock or machine id stays, no file is newer than
# SOURCE_DATE_EPOCH of versions.json, and the image is of that date. Prints the tag. Exit codes: 0 made or there; 2 usage; 3 failed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
readonly LABEL=nightjar.debian
readonly ASKED=DEBIAN_SNAPSHOT,DEBIAN_DAY,IMAGE_ARCH,BINFMT,DOCKER_HOST,http_proxy,https_proxy,no_proxy # kept by sudo
declare -rA MACHINES=([amd64]=x86_64 [arm64]=aarch64) # what the kernel calls them

fail() { # CODE MESSAGE HINT
  printf 'error: %s\nHint: %s\n' "$2" "$3" >&2
  exit "$1"
}

pin() { # prints the value of a variable of versions.json
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["variable"][sys.argv[2]]["default"])' "$here/versions.json" "$1"
}

# The kernel must run programs of the other architecture, in a chroot too (flag F: the emulator is held open).
check_emulator() {
  local emulator=$binfmt/qemu-${MACHINES[$arch]}
  [ "$arch" = "$(dpkg --print-architecture)" ] || grep -qs '^flags:.*F' "$emulator" ||
    fail 3 "this machine runs no programs of $arch: $emulator is missing, or without the flag F." \
      "apt-get install qemu-user-static binfmt-support, and on Debian 13 without systemd
cat /usr/lib/binfmt.d/qemu-${MACHINES[$arch]}.conf >$binfmt/register; or name a base: BASE_IMAGE=debian:trixie-slim"
}

# Updates and the security suite are of the same day, so that no known hole is there on the day on which it is made.
make_root() { # FOLDER
  local packages mirror security log=$1.log past=()
  if [ -n "$day" ]; then
    mirror=$DEBIAN_SNAPSHOT/debian/$day security=$DEBIAN_SNAPSHOT/debian-security/$day
    past=(--aptopt='Acquire::Check-Valid-Until "false"')
  else
    mirror=$("$here/debian-mirror.sh")
    security=${mirror%/debian*}/debian-security
  fi
  packages=$(sed -E 's/[[:space:]]*#.*//; /^$/d' "$here/os-packages.txt" | paste -sd,)
  echo "Making Debian $suite for $arch with mmdebstrap" >&2
  # check_emulator has looked for the emulator; mmdebstrap's own check wants another package, arch-test.
  if ! mmdebstrap --mode=root --architectures="$arch" --skip=check/qemu --variant=minbase --include="$packages" \
    "${past[@]}" "$suite" "$1" \
    "deb $mirror $suite main" "deb $mirror $suite-updates main" "deb $security $suite-security main" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail 3 "mmdebstrap of Debian $suite failed; its last lines are above." "are $mirror and $security reached?"
  fi
}

# Manuals, translations and changelogs stay out, now and of what is installed later, as in Debian's own slim images;
# licences stay.
leave_out_manuals() { # FOLDER
  local root=${1:?} kind
  mkdir -p "$root"/etc/{dpkg/dpkg.cfg.d,alternatives} "$root/usr/share/doc"
  for kind in man info locale lintian; do
    rm -rf "${root:?}/usr/share/$kind"/*
    echo "path-exclude=/usr/share/$kind/*" >>"$root/etc/dpkg/dpkg.cfg.d/nightjar"
  done
  printf 'path-exclude=/usr/share/doc/*\npath-include=/usr/share/doc/*/copyright\n' >>"$root/etc/dpkg/dpkg.cfg.d/nightjar"
  find "$root/usr/share/doc" -mindepth 2 ! -type d ! -name copyright -delete
  find "$root/etc/alternatives" -lname '/usr/share/man/*' -delete
}

# What tells one run, or one machine, from another.
clean_root() { # FOLDER
  local root=${1:?}
  rm -rf "$root"/var/{cache,log}/* "$root"/var/lib/apt/lists/* "$root"/var/lib/dpkg/*-old \
    "$root"/etc/{passwd,group,shadow,gshadow}- "$root"/etc/{resolv.conf,hostname} "${root:?}"/{tmp,run,dev}/*
  : >"$root/etc/machine-id"
  sed -i -E "s/^([^:]+:[^:]*):[0-9]+:/\\1:$((SOURCE_DATE_EPOCH / 86400)):/" "$root/etc/shadow"
  local archive=http://deb.debian.org # Debian's own, whatever mirror this machine uses
  cat >"$root/etc/apt/sources.list" <<SOURCES
deb $archive/debian $suite main
deb $archive/debian $suite-updates main
deb $archive/debian-security $suite-security main
SOURCES
}

is_there() { # of this day, where one is asked for
  local made
  made=$(docker image inspect --format "{{index .Config.Labels \"$LABEL\"}}" "$tag" 2>/dev/null) || return 1
  [ -z "$day" ] || [ "$day" = "$made" ]
}

# As an archive of `docker save`, since `docker import` writes the time of the run into the image: two runs from one state of
# the mirror give one image id, whoever makes it.
import_root() { # FOLDER
  local archive=$1.image label="" created
  mkdir "$archive"
  tar --create --directory "$1" --sort=name --numeric-owner --format=posix --pax-option=delete=atime,delete=ctime \
    --clamp-mtime --mtime="@$SOURCE_DATE_EPOCH" --file "$archive/layer.tar" .
  created=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
  [ -z "$day" ] || label="\"$LABEL\": \"$day\""
  cat >"$archive/config.json" <<CONFIG
{"architecture": "$arch", "os": "linux", "created": "$created", "config": {"Cmd": ["bash"], "Labels": {$label}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$archive/layer.tar" | cut -d " " -f 1)"]},
 "history": [{"created": "$created", "created_by": "docker/ground-floor.sh"}]}
CONFIG
  echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$tag\"], \"Layers\": [\"layer.tar\"]}]" >"$archive/manifest.json"
  tar --create --directory "$archive" . | docker load --quiet >/dev/null
}

main() {
  suite=$(pin DEBIAN_SUITE)
  SOURCE_DATE_EPOCH=$(pin SOURCE_DATE_EPOCH)
  export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
  arch=${IMAGE_ARCH:-$(pin DEFAULT_ARCH)}
  binfmt=${BINFMT:-/proc/sys/fs/binfmt_misc}
  [ -n "${MACHINES[$arch]:-}" ] || fail 2 "IMAGE_ARCH is '$arch', expected one of ${!MACHINES[*]}." "IMAGE_ARCH=arm64"
  tag=nightjar/ground-floor:$suite day=
  [ "$arch" = "$(pin DEFAULT_ARCH)" ] || tag+=-$arch
  [ -z "${DEBIAN_SNAPSHOT:-}" ] || day=${DEBIAN_DAY:-$(pin DEBIAN_DAY)}
  case "${1:-}" in
  "" | --force) ;;
  *) fail 2 "ground-floor.sh: unknown argument '$1': expected --force or nothing." "docker/ground-floor.sh --force" ;;
  esac
  docker version >/dev/null 2>&1 || fail 3 "no Docker engine answers." "run docker/engine.sh as root"
  if [ "${1:-}" != --force ] && is_there; then
    echo "$tag"
    return
  fi
  if [ "$(id -u)" != 0 ]; then # who may ask the engine is root already: sudo gives nobody more
    sudo -n true 2>/dev/null || fail 2 "mmdebstrap needs root, this is uid $(id -u)." "sudo docker/ground-floor.sh"
    exec sudo -n --preserve-env="$ASKED" "$here/ground-floor.sh" "$@"
  fi
  if ! command -v mmdebstrap >/dev/null; then
    echo "Installing mmdebstrap with apt" >&2
    if ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends mmdebstrap debian-archive-keyring; } >&2; then
      fail 3 "apt could not install mmdebstrap." "is the mirror reached? apt-get update"
    fi
  fi
  check_emulator
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  make_root "$work/root"
  leave_out_manuals "$work/root"
  clean_root "$work/root"
  import_root "$work/root"
  echo "$tag"
}

main "$@"
