#!/usr/bin/env bash
# Runs in a builder stage that has all packages of an image: leaves /usr/local/cuda under /target, a toolkit made of links to
# the NVIDIA wheels (programs, headers, libraries with and without their versions), with the loader's cache of it. Nothing
# where there are no such wheels. The programs of CUDA that the wheels have are on PATH: CUDA 13's hold a whole compiler, those
# of CUDA 12 ptxas alone.
set -euo pipefail
umask 022

readonly CUDA=/usr/local/cuda
mkdir -p /target
shopt -s nullglob
wheels=(/opt/nightjar/lib/python3*/site-packages/nvidia/*/)

link_files() { # FOLDER...
  local part folder
  for part in bin compute-sanitizer include nvvm; do
    for folder in "${@/%//$part}"; do
      [ ! -d "$folder" ] || { mkdir -p "/target$CUDA/$part" && cp -rsf "$folder/." "/target$CUDA/$part/"; }
    done
  done
}

link_libraries() { # FOLDER...
  local folder library name
  mkdir -p "/target$CUDA/lib64"
  for folder in "${@/%//lib}"; do
    for library in "$folder"/*.so* "$folder"/*.a; do
      name=$(basename "$library")
      ln -sf "$library" "/target$CUDA/lib64/$name"
      case $name in *.so.*) ln -sf "$library" "/target$CUDA/lib64/${name%%.so*}.so" ;; esac
    done
  done
  ln -s lib64 "/target$CUDA/lib"
}

# Not links: nvcc looks for its own files beside the path by which it was called.
add_programs() {
  local program name
  mkdir -p /target/usr/local/bin
  for program in bin/{nvcc,ptxas,nvlink,nvdisasm,cuobjdump} compute-sanitizer/compute-sanitizer; do
    [ -e "/target$CUDA/$program" ] || continue
    name=$(basename "$program")
    printf '#!/bin/sh\nexec %s/%s "$@"\n' "$CUDA" "$program" >"/target/usr/local/bin/$name"
    chmod 755 "/target/usr/local/bin/$name"
  done
}

# The loader's cache is made where the files are: the links must be there, too.
cache_libraries() {
  mkdir -p /target/etc/ld.so.conf.d
  echo "$CUDA/lib64" >/target/etc/ld.so.conf.d/nightjar-cuda.conf
  cp -a "/target$CUDA" /usr/local/
  cp /target/etc/ld.so.conf.d/nightjar-cuda.conf /etc/ld.so.conf.d/
  ldconfig
  cp /etc/ld.so.cache /target/etc/
}

if [ ${#wheels[@]} != 0 ]; then
  link_files "${wheels[@]%/}"
  link_libraries "${wheels[@]%/}"
  add_programs
  cache_libraries
fi
find /target -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
