#!/usr/bin/env bash
# Gives a Debian or Ubuntu machine without one a Docker engine that builds with BuildKit. Needs root only where something
# must be installed or started; run again, it changes nothing.
#
#   docker/engine.sh
#
# An engine that answers is left alone, whoever started it. Debian 12's own buildx is too old for the image tree, so
# there the packages come from trixie, from the machine's own mirror, at a priority that leaves every other package be.
# Without an init system dockerd is started by hand; the log of apt and dockerd is /var/log/nightjar-engine.log.
# Exit codes: 0 an engine answers; 2 not a Debian machine, or not root; 3 it could not be installed or started.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin # where dockerd lies; root's shell by `su` has neither
readonly LOG=/var/log/nightjar-engine.log
readonly WAIT_S=60

answers() { docker version >/dev/null 2>&1; }
builds() { docker buildx version >/dev/null 2>&1; }

fail() { # CODE MESSAGE HINT
  printf 'error: %s\nHint: %s\n' "$2" "$3" >&2
  exit "$1"
}

add_trixie() {
  cat >/etc/apt/sources.list.d/nightjar-trixie.sources <<SOURCES
Types: deb
URIs: $("$(dirname "$0")/debian-mirror.sh")
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
  printf 'Package: *\nPin: release n=trixie\nPin-Priority: 100\n' >/etc/apt/preferences.d/nightjar-trixie
}

install_packages() {
  local packages=(docker.io docker-buildx) release=() apt=(apt-get -qq -o Dpkg::Use-Pty=0)
  export DEBIAN_FRONTEND=noninteractive
  if [ "$VERSION_CODENAME" = bookworm ]; then
    add_trixie
    release=(-t trixie)
  fi
  "${apt[@]}" update >>"$LOG" 2>&1
  apt-cache show docker-cli >/dev/null 2>&1 && packages+=(docker-cli) # Debian 13 split the client off
  # A machine whose policy or init starts services after installation already has its daemon when this returns.
  "${apt[@]}" install -y --no-install-recommends "${release[@]}" "${packages[@]}" iptables >>"$LOG" 2>&1
}

# After a kill, the number in a pid file may be another program's by now, and the daemon would not start.
remove_stale() { # NAME PIDFILE
  local pid
  pid=$(cat "$2" 2>/dev/null) || return 0
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] || rm -f "$2"
}

start_daemon() {
  if [ -d /run/systemd/system ]; then
    systemctl start docker
  else
    remove_stale dockerd /var/run/docker.pid
    remove_stale containerd /var/run/docker/containerd/containerd.pid
    setsid --fork dockerd >>"$LOG" 2>&1 </dev/null
  fi
}

wait_for_daemon() {
  local waited
  for ((waited = 0; waited < WAIT_S; waited++)); do
    answers && return
    sleep 1
  done
  tail -n 20 "$LOG" >&2 2>/dev/null || true
  fail 3 "dockerd did not answer within $WAIT_S s." "read $LOG; another dockerd may hold /var/run/docker.pid"
}

main() {
  if answers && builds; then
    exit 0
  fi
  if answers; then
    fail 3 "the Docker engine that answers has no buildx." "install docker-buildx (Debian) or docker-buildx-plugin (docker.com)"
  fi
  [ -r /etc/os-release ] || fail 2 "this machine has no /etc/os-release." "install a Docker engine with buildx by hand"
  # shellcheck source=/dev/null
  . /etc/os-release
  case " ${ID:-} ${ID_LIKE:-} " in
  *" debian "*) ;;
  *) fail 2 "this machine runs ${PRETTY_NAME:-an unknown system}, expected Debian or Ubuntu." "install a Docker engine with buildx by hand" ;;
  esac
  [ "$(id -u)" = 0 ] || fail 2 "no Docker engine answers and uid $(id -u) cannot install one." "run it as root, or start the engine"
  if ! command -v dockerd >/dev/null || ! builds; then
    echo "Installing a Docker engine with apt" >&2
    install_packages || {
      tail -n 20 "$LOG" >&2
      fail 3 "apt could not install the Docker engine; its last lines are above." "is the mirror reached? apt-get update"
    }
  fi
  echo "Starting dockerd" >&2
  answers || start_daemon # an init system has started it with its installation
  wait_for_daemon
}

main "$@"
