#!/usr/bin/env bash
# layers.sh FOLDER SOURCE COMPILER LAYER...: a layer can include the headers of its own layer and of those below, and none of
# those above. LAYERs are the lowest first; FOLDER/LAYER.txt lists where the sources of LAYER look for headers.
set -euo pipefail
includes=$1 source=$2 compiler=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
fail() { failures=$((failures + 1)); echo "$*" >&2; }

# What cuda/ has of the layer above it: headers whose sources it does not need (src/CMakeLists.txt).
allowed=' cuda:kda/arithmetic.hpp cuda:kda/cast_points.hpp cuda:kda/gpu_words.hpp cuda:kda/gradient.hpp cuda:kda/on_gpu.hpp cuda:kda/options.hpp cuda:kda/rounded.hpp cuda:kda/row_error_sums.hpp cuda:kda/row_layout.hpp cuda:kda/stage.hpp cuda:kda/stored_state.hpp cuda:kda/tensor_core_limits.hpp '
kernels='gate_functions gradient_elements gradient_rules gradient_step oracle_elements oracle_step row_norm'
# Those for a team, and what they take.
kernels+=' backward_blocks chunk chunk_backward chunk_backward_block chunk_backward_parts chunk_operands cumulate decays element_block exact_sum exponential intra_backward inverse one_lane operations oracle_blocks product reduction residual_backward row_error_rules scores solve sum_terms sums_of_rows table team tensor_core token token_backward triton_backward'
for kernel in $kernels; do allowed+="cuda:kda/kernels/$kernel.hpp "; done

headers_of() {
  local where=$source/src/$1
  [ -d "$where" ] || where=$source/$1
  (cd "$where" && find . -name '*.hpp' -o -name '*.cuh' | sed "s,^\./,$1/,")
}
# compiles LAYER: the standard input, as a source of LAYER.
compiles() {
  local options=()
  mapfile -t options < <(sort -u "$includes/$1.txt" | grep -F "$includes" | sed 's/^/-I/')
  (cd "$folder" && "$compiler" -std=c++20 -fsyntax-only -x c++ "${options[@]}" -) 2>"$folder/log"
}

layers=("$@")
[ ${#layers[@]} -ge 8 ] || fail "only these layers: $*"
for i in "${!layers[@]}"; do
  layer=${layers[i]}
  own=$(headers_of "$layer" | grep -v '\.cuh$' | head -n 1)
  [ "$layer" != cuda ] || own=cuda/gpu.hpp
  printf '#if !__has_include("%s")\n#error\n#endif\n' "$own" | compiles "$layer" ||
    fail "$layer cannot include its own $own"
  for above in "${layers[@]:i+1}"; do
    for header in $(headers_of "$above"); do
      [[ $allowed != *" $layer:$header "* ]] || continue
      printf '#if __has_include("%s")\n#error %s can include %s\n#endif\n' "$header" "$layer" "$header"
    done
  done >"$folder/probe"
  compiles "$layer" <"$folder/probe" || fail "$(grep -o "#error .*" "$folder/log" | head -n 3)"
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
