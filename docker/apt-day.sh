#!/usr/bin/env bash
# Prints the options, one a line, with which apt-get takes packages of the day DEBIAN_DAY from DEBIAN_SNAPSHOT, an archive of
# Debian's past such as http://snapshot.debian.org/archive: a date can be built again when the mirror has moved on. Nothing
# where DEBIAN_SNAPSHOT is empty, or the OS is none of Debian's: then packages are those of now. Runs in builder stages.
set -euo pipefail

readonly LIST=${LIST:-/run/nightjar-day.list} # /run is in no layer
[ -n "${DEBIAN_SNAPSHOT:-}" ] || exit 0
# shellcheck source=/dev/null
. "${OS_RELEASE:-/etc/os-release}"
if [ "$ID" != debian ]; then
  echo "warning: DEBIAN_SNAPSHOT has no $ID: OS packages are those of now, another build may get others." >&2
  exit 0
fi
: >"$LIST"
for suite in "debian/$DEBIAN_DAY $VERSION_CODENAME" "debian/$DEBIAN_DAY $VERSION_CODENAME-updates" \
  "debian-security/$DEBIAN_DAY $VERSION_CODENAME-security"; do
  echo "deb [check-valid-until=no] $DEBIAN_SNAPSHOT/$suite main contrib non-free" >>"$LIST"
done
printf '%s\n' -o "Dir::Etc::SourceList=$LIST" -o Dir::Etc::SourceParts=/dev/null
