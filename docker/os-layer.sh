#!/usr/bin/env bash
# Runs in builder stages: adds OS packages and leaves every file that this changed under /target, with the pinned date,
# so that two builds from one state of the mirror are the same bytes.
#
#   os-layer.sh base LIST UID PYTHON   packages of LIST (one a line, # comments), the user that containers run as,
#                                      /opt/nightjar, an empty virtual environment, and folders in which any user may
#                                      write; fails where python3 is not PYTHON
#   os-layer.sh add LIST               packages of LIST
set -euo pipefail
umask 022

install_packages() { # LIST
  local packages
  mapfile -t packages < <(sed -E 's/[[:space:]]*#.*//; /^$/d' "$1")
  dpkg --status "${packages[@]}" >/dev/null 2>&1 && return
  local of_the_day
  mapfile -t of_the_day < <(bash "$(dirname "$0")/apt-day.sh")
  apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" update
  DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" install -y --no-install-recommends "${packages[@]}"
}

add_user() { # UID
  useradd --uid "$1" --user-group --create-home --no-log-init --shell /bin/bash nightjar
}

# As /tmp: every uid makes files of its own, and changes nobody else's. A named volume that is first mounted on such a
# folder gets its mode.
add_shared_folders() {
  install -d --owner nightjar --group nightjar --mode 1777 /home/nightjar /home/nightjar/.cache /data /workspace
  find /opt/nightjar -type d -exec chmod 1777 {} +
}

# `python -m venv --system-site-packages` sees what the system's Python sees; pip keeps no copy of what it installs; and git
# reads a checkout that is mounted, whoever owns it.
add_settings() { # PYTHON
  local python=python$1
  install -d "/usr/local/lib/$python/dist-packages"
  echo "/opt/nightjar/lib/$python/site-packages" >"/usr/local/lib/$python/dist-packages/nightjar.pth"
  printf '[global]\nno-cache-dir = true\ndisable-pip-version-check = true\n' >/opt/nightjar/pip.conf
  git config --system --add safe.directory '*'
}

# /etc/profile sets PATH anew: what begins with a login shell (Enroot, some editors) would be without the environment.
keep_path() {
  cat >/etc/profile.d/nightjar.sh <<'LINES'
case ":$PATH:" in
*:/opt/nightjar/bin:*) ;;
*) PATH=/opt/nightjar/bin:$PATH ;;
esac
LINES
}

check_python() { # WANTED
  local found
  found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ "$found" = "$1" ] && return
  printf 'error: BASE_IMAGE has Python %s, expected %s.\nHint: IMAGE_PYTHON=%s, or another BASE_IMAGE\n' "$found" "$1" "$found" >&2
  exit 2
}

# A file of the OS that this build changed has a newer ctime than the mark; nothing else can tell it from the rest.
stage() { # MARK
  local left=(/proc /sys /dev /run /tmp /mnt /root /target /var/cache /var/log /var/lib/apt/lists)
  left+=(/etc/resolv.conf /etc/hosts /etc/hostname /etc/{passwd,group,shadow,gshadow,subuid,subgid}- '*-old')
  left+=('*/__pycache__') # these name the time of their source
  local skip=() path
  for path in "${left[@]}"; do skip+=(-o -path "$path"); done
  mkdir /target
  find / -xdev \( -false "${skip[@]}" \) -prune -o \( ! -type d -o -empty \) -cnewer "$1" -print0 |
    xargs -0 --no-run-if-empty cp -a --parents --target-directory /target
  find /target -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

# Some lead to documents that the images have not.
drop_dead_links() {
  find /usr/share/doc -xtype l -delete
}

mark=$(mktemp)
sleep 0.1 # file systems count time in ticks
case $1 in
base)
  install_packages "$2"
  check_python "$4"
  add_user "$3"
  python3 -m venv --without-pip /opt/nightjar
  keep_path
  add_settings "$4"
  add_shared_folders
  install -D --mode 644 "$2" /usr/share/nightjar/os-packages.txt
  ;;
add)
  install_packages "$2"
  ;;
*)
  echo "error: os-layer.sh: unknown layer '$1': expected base or add." >&2
  exit 2
  ;;
esac
drop_dead_links
stage "$mark"
