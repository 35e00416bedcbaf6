#!/usr/bin/env bash
# Runs in a builder stage of the base image: leaves Nsight Systems' command line under /target, or nothing.
#
#   nsys-layer.sh none      nothing
#   nsys-layer.sh debian    the program of Debian's non-free archive, without its window system and its driver
set -euo pipefail
umask 022

mkdir /target
case $1 in
none) ;;
debian)
  mapfile -t of_the_day < <(bash "$(dirname "$0")/apt-day.sh")
  find /etc/apt \( -name '*.list' -o -name '*.sources' \) -exec sed -i 's/ main$/ main contrib non-free/' {} +
  apt-get -qq -o Dpkg::Use-Pty=0 "${of_the_day[@]}" update
  cd /tmp
  # What its command line and its importer load; not Qt.
  libraries=(libelf1t64 libpfm4 libssh-4 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libcom-err2)
  apt-get -qq "${of_the_day[@]}" download nsight-systems nsight-systems-target "${libraries[@]}"
  for package in ./*.deb; do dpkg --extract "$package" /target; done
  nsight=/target/usr/lib/nsight-systems
  host=$(basename "$nsight"/host-linux-*) # x64, armv8
  rm -rf "$nsight/$host"/{nsys-ui*,libQt6WebEngine*,translations,resources} "$nsight"/bin/nsys-ui
  rm -rf /target/usr/bin/{nsys-ui,nsight-sys} /target/usr/share/{doc,man,applications,icons,lintian}
  # nsys looks for its importer beside the folder that it lies in, which Debian makes a link.
  ln -s "../../nsight-systems/$host" "$(echo /target/usr/lib/*-linux-gnu/nsight-systems)/$host"
  find /target -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
  ;;
*)
  echo "error: nsys-layer.sh: unknown source '$1': expected none or debian." >&2
  exit 2
  ;;
esac
