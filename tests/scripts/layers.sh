#!/usr/bin/env bash
# layers.sh FOLDER SOURCE COMPILER LAYER...: a layer can include the headers of its own layer and the doors of those below,
# and nothing of those above. LAYERs are the lowest first; FOLDER/TARGET.txt lists where the sources of one look for headers.
set -euo pipefail
includes=$1 source=$2 compiler=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
fail() { failures=$((failures + 1)); echo "$*" >&2; }

# target LAYER: its name in the build.
target() { echo "kda_check_${1//\//_}"; }
# The headers of LAYER; those of layers within its folder are not.
headers_of() {
  local where=$source/src/$1 layer within=()
  [ -d "$where" ] || where=$source/$1
  for layer in "${layers[@]}"; do [[ $layer != "$1"/* ]] || within+=(! -path "./${layer#"$1"/}/*"); done
  (cd "$where" && find . \( -name '*.hpp' -o -name '*.cuh' \) "${within[@]}" | sed "s,^\./,$1/," | sort)
}
# The doors of LAYER: what its folder for others has.
doors_of() { (cd "$includes/$(target "$1")_headers" && find -L . -name '*.hpp' -o -name '*.cuh') | sed 's,^\./,,' | sort; }
# compiles LAYER: the standard input, as a source of LAYER.
compiles() {
  local options=()
  mapfile -t options < <(sort -u "$includes/$(target "$1").txt" | grep -F "$includes" | sed 's/^/-I/')
  (cd "$folder" && "$compiler" -std=c++20 -fsyntax-only -x c++ "${options[@]}" -) 2>"$folder/log"
}
# cannot LAYER: include the headers of the standard input.
cannot() {
  while read -r header; do
    printf '#if __has_include("%s")\n#error %s can include %s\n#endif\n' "$header" "$1" "$header"
  done >"$folder/probe"
  compiles "$1" <"$folder/probe" || fail "$(grep -o "#error .*" "$folder/log" || cat "$folder/log")"
}

layers=("$@")
[ ${#layers[@]} -ge 8 ] || fail "only these layers: $*"
for layer in "${layers[@]}"; do
  headers_of "$layer" >"$folder/headers.${layer//\//_}"
  comm -23 "$folder/headers.${layer//\//_}" <(doors_of "$layer") >"$folder/private.${layer//\//_}"
done
for i in "${!layers[@]}"; do
  layer=${layers[i]}
  own=$(head -n 1 "$folder/headers.${layer//\//_}")
  printf '#if !__has_include("%s")\n#error\n#endif\n' "$own" | compiles "$layer" || fail "$layer cannot include its own $own"
  # Not behind a pipe: what fails is counted here.
  cannot "$layer" < <(for above in "${layers[@]:i+1}"; do cat "$folder/headers.${above//\//_}"; done)
  # Below, doors alone; cuda compiles the kernels, too.
  cannot "$layer" < <(for below in "${layers[@]:0:i}"; do
    [[ $layer/$below == cuda/*/kda/kernels ]] || cat "$folder/private.${below//\//_}"
  done)
done

# The same as it would happen: an include upwards does not compile, one downwards does.
first=${layers[0]} last=${layers[-1]}
! echo "#include \"$(headers_of "$last" | head -n 1)\"" | compiles "$first" || fail "$first compiled with a header of $last"
grep -q 'No such file\|not found' "$folder/log" || fail "not for want of the header: $(cat "$folder/log")"
echo "#include \"$(headers_of "$first" | head -n 1)\"" | compiles "$last" || fail "$last: $(cat "$folder/log")"

# No way around.
! grep -rnE '#include "\.\.?/' "$source/src" "$source/cuda" --include=*.[ch]pp --include=*.cu --include=*.cuh ||
  fail 'an include by a relative path'
echo "${#layers[@]} layers"
[ "$failures" = 0 ]
