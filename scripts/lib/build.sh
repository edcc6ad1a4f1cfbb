# Shared by the scripts of this folder: packages and builds. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# packages_of FILE: those of the libraries that CMake looks for there (cmake/packages.cmake). An archive of the sources has
# no tests.
packages_of() { [ ! -e "$root/$1" ] || sed -n 's/^kda_check_need[a-z_]*(\([^ ]*\) .*/\1/p' "$root/$1" | sort -u; }

# Debian 12 and Ubuntu 24.04 have all of these.
build_packages=(g++ cmake ninja-build $(packages_of cmake/dependencies.cmake))
test_packages=($(packages_of tests/CMakeLists.txt) python3-jsonschema libopenmpi-dev openmpi-bin)
format_packages=(clang-format)
clang_packages=(clang)

say() { printf 'kda-check: %s\n' "$*" >&2; }

# install_packages NAME...: those that are missing, and nothing when none is.
install_packages() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here; going on without installing anything. Needed: $*"
    return
  fi
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    say "error: missing packages; hint: as root: apt-get install ${missing[*]}"
    exit 4
  fi
  say "installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
         apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "error: could not install ${missing[*]}; the whole log is $log"
    exit 4
  fi
  rm -f "$log"
}

# The sanitizers and libFuzzer of the clang that is installed: its package only recommends them.
install_clang_runtime() {
  local version
  version=$(clang -dumpversion)
  install_packages "libclang-rt-${version%%.*}-dev"
}

# Compilers are asked through ccache where it is. Precompiled headers are safe with it under these words; the rest
# lets clones in other folders share what was compiled.
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}pch_defines,time_macros
fi

# counted LOG WORDS...: what WORDS print goes to LOG. How far they are, if they say it as ninja does, [120/400], is shown:
# in one line of a terminal, elsewhere every half minute.
counted() {
  local log=$1 shown=$SECONDS line code=0
  shift
  "$@" 2>&1 | while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    [[ $line =~ ^\ *(\[[0-9]+/[0-9]+\]) ]] || continue
    if [ -t 2 ]; then
      printf '\r%s ' "${BASH_REMATCH[1]}" >&2
    elif ((SECONDS - shown >= 30)); then
      say "${BASH_REMATCH[1]}"
      shown=$SECONDS
    fi
  done || code=$?
  [ ! -t 2 ] || printf '\r\e[K' >&2
  return $code
}

# build PRESET [TARGET...]: quiet unless it fails, takes long, or what it is built for is new (cmake/native.cmake).
build() {
  local preset=$1 log="$root/build/$1.log" built_for="$root/build/$1/built_for.txt" before=
  shift
  [ $# -gt 0 ] || set -- all
  mkdir -p "$root/build"
  [ -e "$root/build/$preset/build.ninja" ] || say "building, a few minutes the first time"
  [ ! -e "$built_for" ] || before=$(<"$built_for")
  if ! (cd "$root" && cmake --preset "$preset") >"$log" 2>&1; then
    build_failed "$preset"
  fi
  [ ! -e "$built_for" ] || [ "$(<"$built_for")" = "$before" ] || say "$(<"$built_for")"
  if ! counted "$log" cmake --build "$root/build/$preset" --target "$@"; then
    build_failed "$preset"
  fi
}
build_failed() {
  grep -E -A5 'error|Error|FAILED' "$root/build/$1.log" | head -n 40 >&2 || true
  say "error: the build failed; the whole log is build/$1.log"
  exit 4
}
