#!/usr/bin/env bash
# Prints the Debian mirror that this machine's apt uses, in whichever of its formats it is written; deb.debian.org where
# the machine is no Debian.
set -euo pipefail

release() { # prints one field of /etc/os-release
  sed -nE "s/^$1=\"?([^\"]*)\"?$/\\1/p" /etc/os-release
}

uri=
if [ "$(release ID)" = debian ]; then
  # shellcheck disable=SC2016  # $(REPO_URI) is apt's own format, not the shell's
  uri=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: $(release VERSION_CODENAME)" | head -n 1)
fi
archive=deb.debian.org
echo "${uri:-http://$archive/debian}"
