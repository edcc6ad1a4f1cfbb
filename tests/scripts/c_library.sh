#!/usr/bin/env bash
# c_library.sh SOURCE: no number that is compared or judged comes from an elementary function of the C library, whose bits
# depend on the library and on the processor: numeric/elementary.hpp has them. Drawings and sizes of memory may.
set -euo pipefail
cd "$1"
functions='exp|exp2|exp10|expm1|log|log1p|log2|log10|pow|cbrt|hypot|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|erf|erfc|lgamma|tgamma'
calls="(std::|__builtin_|[^:A-Za-z0-9_]::)($functions)[fl]?\b"
# Everything but comments, the report's drawings and words for memory.
found=$(grep -rnE "$calls" src --include=*.[ch]pp | grep -vE '^[^:]*:[0-9]*: *//|^src/(report|base)/' || true)
# The C library's own values of the exponential axis.
wanted='src/kda/kernels/elements/elements.cpp
src/numeric/exponentials.cpp'
[ "$(cut -d: -f1 <<<"$found" | sort)" = "$wanted" ] || {
  printf 'wanted one call in each of\n%s\nfound\n%s\n' "$wanted" "$found" >&2
  exit 1
}
