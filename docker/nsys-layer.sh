#!/usr/bin/env bash
# Runs in a builder stage of the profiling image: leaves Nsight Systems' command line under /target, or nothing.
#
#   nsys-layer.sh none      nothing
#   nsys-layer.sh debian    the program of Debian's non-free archive, without its window system and its driver
set -euo pipefail
umask 022

mkdir /target
case $1 in
none) ;;
debian)
  mapfile -t of_the_day < <(apt-day.sh)
  sed -i 's/ main$/ main contrib non-free/' /etc/apt/sources.list
  apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" update
  cd /tmp
  apt-get -qq "${of_the_day[@]}" download nsight-systems nsight-systems-target
  for package in ./*.deb; do dpkg --extract "$package" /target; done
  rm -rf /target/usr/share/{doc,man,applications,icons,lintian}
  find /target -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
  ;;
*)
  echo "error: nsys-layer.sh: unknown source '$1': expected none or debian." >&2
  exit 2
  ;;
esac
