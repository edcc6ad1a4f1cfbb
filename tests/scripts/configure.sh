#!/usr/bin/env bash
# configure.sh SOURCE: what is missing is named once, by packages; and what pip has built is there at its next call.
set -euo pipefail
source=$1
source "$source/scripts/lib/build.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*" >&2; exit 1; }

path=$PATH
configure() { (cd "$source" && env -u CXX PATH="$path" cmake --preset wheel -B "$folder/build" -DKDA_CHECK_NATIVE=ON "$@") >"$folder/log" 2>&1; }
# missing WORDS... -- PACKAGE...: configured with WORDS, the build wants these packages and no others.
missing() {
  local words=() named
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  rm -rf "$folder/build"
  ! configure "${words[@]}" || fail "${words[*]}: nothing is missing"
  [ "$(grep -c 'CMake Error' "$folder/log")" = 1 ] || fail "${words[*]}: more than one error: $(<"$folder/log")"
  named=$(sed -n 's/^ *kda-check: error: missing packages; hint: as root: apt-get install //p' "$folder/log")
  diff <(tr ' ' '\n' <<<"$named" | sort) <(shift; printf '%s\n' "$@" | sort) || fail "${words[*]}: $named"
}

# Nothing but CMake itself, then no libraries, then one library less: what the scripts install is what is asked for.
libraries=()
for package in "${build_packages[@]}"; do
  case $package in g++ | cmake | ninja-build) ;; *) libraries+=("$package") ;; esac
done
[ ${#libraries[@]} -gt 0 ] || fail "no libraries among ${build_packages[*]}"
mkdir "$folder/bin"
for tool in cmake ninja; do ln -s "$(command -v $tool)" "$folder/bin"; done
path=$folder/bin missing -- g++ "${libraries[@]}"
hidden=(-DCMAKE_FIND_ROOT_PATH="$folder/nowhere")
for kind in PACKAGE LIBRARY INCLUDE; do hidden+=(-DCMAKE_FIND_ROOT_PATH_MODE_$kind=ONLY); done
missing "${hidden[@]}" -- "${libraries[@]}"
missing -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -- libfmt-dev
missing -DKDA_CHECK_TESTS=ON -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON -- catch2

# pip has CMake forget all at each call, as its tools lie elsewhere each time: the cache goes, and CMakeFiles of the root.
# A compiler that compiles nothing is soon done.
c++ -x c++ -c /dev/null -o "$folder/empty.o"
cat >"$folder/compiler" <<END
#!/bin/sh
while [ "\$1" != -o ]; do shift; done
cp "$folder/empty.o" "\$2"
END
chmod +x "$folder/compiler"
calls_pip() {
  rm -rf "$folder/build/CMakeCache.txt" "$folder/build/CMakeFiles"
  configure -DCMAKE_CXX_COMPILER_LAUNCHER="$folder/compiler" -DCMAKE_INSTALL_PREFIX="$(mktemp -d -p "$folder")" || fail "$(<"$folder/log")"
}
rm -rf "$folder/build"
calls_pip
objects=$(ninja -C "$folder/build" -t targets all | sed -n 's/^\([^:]*\.o\): CXX_COMPILER__.*/\1/p')
ninja -C "$folder/build" $objects >"$folder/log" || fail "$(<"$folder/log")"
calls_pip
again=$(ninja -C "$folder/build" -n $objects)
[[ $again = *"no work to do"* ]] || fail "the second call compiles again: $again"
