#!/usr/bin/env bash
# Runs in the build of the base image: adds what is missing of os-packages.txt, and the user (UID is
# its only argument) that containers run as.
set -euo pipefail

mapfile -t packages < <(sed -E 's/[[:space:]]*#.*//; /^$/d' /usr/share/nightjar/os-packages.txt)
if ! dpkg --status "${packages[@]}" >/dev/null 2>&1; then
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}"
  rm -rf /var/lib/apt/lists/* /var/cache/{apt,debconf,ldconfig}/* /var/log/{apt,*.log}
fi
useradd --uid "$1" --user-group --create-home --no-log-init --shell /bin/bash nightjar
rm -f /etc/{passwd,group,shadow,gshadow,subuid,subgid}-
chmod 755 /home/nightjar
