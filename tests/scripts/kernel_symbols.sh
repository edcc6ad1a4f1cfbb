#!/usr/bin/env bash
# kernel_symbols.sh FOLDER NM ISA...: the object of each instruction set defines one name that others see, its table.
set -euo pipefail
folder=$1 nm=$2
shift 2
failures=0
for isa in "$@"; do
  seen=$("$nm" --extern-only --defined-only --format=posix "$folder/$isa.o" | awk '{ print $1 }')
  [ "$seen" = "kda_check_kernels_$isa" ] ||
    { failures=$((failures + 1)); printf '%s shows more than its table:\n%s\n' "$isa" "$(head -n 5 <<<"$seen")" >&2; }
done
echo "$#: $*"
[ $# -ge 1 ] && [ "$failures" = 0 ]
