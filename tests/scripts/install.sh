#!/usr/bin/env bash
# install.sh BUILD SOURCE: installs into a temporary folder, and makes the .deb where the tools for that are; runs the
# installed program with the source tree out of reach.
set -euo pipefail
build=$1 source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# run_from PREFIX: the smoke suite, with an empty folder over the source tree where we may have one.
run_from() {
  local prefix=$1 out=$folder/out.json
  local words=("$prefix/bin/kda-check" run @smoke -q --json "$out")
  cd "$prefix"
  if unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none "$1"' _ "$source" 2>/dev/null; then
    unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none "$1" && shift && exec "$@"' _ "$source" "${words[@]}"
  else
    echo 'no namespaces here: the source tree was in reach'
    "${words[@]}"
  fi
  grep -q '"repro": "kda-check run share/kda-check/cases/fixtures/' "$out" || { echo "the cases came from elsewhere" >&2; exit 1; }
  # In reports they have one name wherever the program is installed: baselines know them by it.
  grep -q '"path": "cases/fixtures/' "$out" || { echo "the names of the cases depend on the place" >&2; exit 1; }
  ! grep -q "$source" "$out" || { echo "the report names the source tree" >&2; exit 1; }
}

cmake --install "$build" --prefix "$folder/prefix" >/dev/null
for file in bin/kda-check share/kda-check/cases/suites/ci.txt share/kda-check/cases/captures share/man/man1/kda-check.1 \
            share/bash-completion/completions/kda-check share/zsh/site-functions/_kda-check \
            share/fish/vendor_completions.d/kda-check.fish share/kda-check/python/kda_check/__init__.py \
            share/kda-check/python/kda_check/_export_fla.py \
            share/doc/kda-check/README.md share/doc/kda-check/docs/README.md share/doc/kda-check/docs/report.schema.json; do
  [ -e "$folder/prefix/$file" ] || { echo "not installed: $file" >&2; exit 1; }
done
run_from "$folder/prefix"

if command -v dpkg-deb >/dev/null && command -v cpack >/dev/null; then
  (cd "$folder" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$folder/package" >cpack.log 2>&1) ||
    { cat "$folder/cpack.log" >&2; exit 1; }
  dpkg-deb --extract "$folder"/package/*.deb "$folder/root"
  dpkg-deb --field "$folder"/package/*.deb Package Version Depends
  run_from "$folder/root/usr"
fi
