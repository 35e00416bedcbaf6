#!/usr/bin/env bash
# Runs in a builder stage of the base image: makes /target, into which nightjar-doctor was copied, a layer of fixed bytes.
# The doctor is the standard library's alone; the models image has the same command from its own package.
#
#   doctor-layer.sh COMMAND    writes COMMAND, which starts the package beside it, and fixes modes and times
set -euo pipefail
umask 022

readonly PACKAGES=/usr/local/lib/nightjar-doctor
mkdir -p "$(dirname "/target$1")"
cat >"/target$1" <<PROGRAM
#!/opt/nightjar/bin/python
"""Starts nightjar-doctor, which needs the standard library alone."""
import sys

sys.path.insert(0, "$PACKAGES")
from nightjar_models.doctor.cli import main

main()
PROGRAM
find /target -type d -exec chmod 755 {} +
find /target -type f -exec chmod 644 {} +
chmod 755 "/target$1"
find /target -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
