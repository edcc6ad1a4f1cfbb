# Shared by the scripts of this folder: packages and builds. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Debian 12 and Ubuntu 24.04 have all of these.
build_packages=(g++ cmake ninja-build libcli11-dev libxtensor-dev libfmt-dev libhdf5-dev nlohmann-json3-dev
                zlib1g-dev libaec-dev liblzma-dev libtomlplusplus-dev libpugixml-dev)
test_packages=(catch2 libmpfr-dev)
format_packages=(clang-format)

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

# build PRESET [TARGET]: quiet unless it fails or takes long.
build() {
  local preset=$1 target=${2:-all} log="$root/build/$1.log"
  mkdir -p "$root/build"
  [ -e "$root/build/$preset/build.ninja" ] || say "building, a few minutes the first time"
  if ! { cd "$root" && cmake --preset "$preset" && cmake --build "$root/build/$preset" --target "$target"; } >"$log" 2>&1; then
    grep -E -A5 'error|Error|FAILED' "$log" | head -n 40 >&2 || true
    say "error: the build failed; the whole log is build/$preset.log"
    exit 4
  fi
}
