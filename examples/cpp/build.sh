#!/bin/sh
# Builds run_library against the headers and libraries in the Python packages apache-tvm and
# apache-tvm-ffi, into a folder that holds all that it needs: `sh build.sh FOLDER`.
set -eu
folder=${1:-build}
where='import importlib.util, sys; print(*importlib.util.find_spec(sys.argv[1]).submodule_search_locations)'
tvm=$("${PYTHON:-python3}" -c "$where" tvm)
ffi=$("${PYTHON:-python3}" -c "$where" tvm_ffi)

mkdir -p "$folder"
cp "$tvm/lib/libtvm_runtime.so" "$ffi/lib/libtvm_ffi.so" "$folder"
# The program calls nothing of libtvm_runtime itself, but its virtual machine has to be there.
${CXX:-g++} -std=c++17 -O2 -Wall -I "$ffi/include" -o "$folder/run_library" \
  "$(dirname "$0")/run_library.cc" -L "$folder" -Wl,--no-as-needed -ltvm_runtime -ltvm_ffi \
  -Wl,-rpath,'$ORIGIN'
