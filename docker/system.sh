#!/usr/bin/env bash
# Installs with apt what the tests of real parts use and this Debian or Ubuntu machine lacks: a Docker engine, a registry,
# Chromium, PostgreSQL, skopeo, umoci, Podman, bubblewrap and cosign. Needs root; run again, it changes nothing.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
"$(dirname "$0")/engine.sh" # on Debian 12 it adds the packages of 13
apt-get -qq update
wanted=(bubblewrap)
# Ubuntu's apt has no Chromium, and GitHub's runners have one of their own: what is on PATH is not installed.
for name in chromium docker-registry postgresql skopeo umoci podman git ca-certificates; do
  command -v "$name" >/dev/null || wanted+=("$name")
done
apt-get -qq install -y --no-install-recommends "${wanted[@]}"
apt-get -qq install -y --no-install-recommends cosign || true # Debian 12 has none
