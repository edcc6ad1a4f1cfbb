#!/usr/bin/env bash
# instruction_sets.sh PROGRAM SOURCE ISA...: the smoke suite gives the same document with the kernels of every instruction
# set that can run here, byte for byte; one that cannot run here, or does not exist, is one line and exit code 2.
set -euo pipefail
program=$1 source=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0 run=()
fail() { failures=$((failures + 1)); echo "$*" >&2; }

# refused VALUE: exit code 2, one line that names the variable, nothing on standard output.
refused() {
  local code=0
  KDA_CHECK_ISA=$1 "$program" list devices >"$folder/out" 2>"$folder/err" || code=$?
  [ "$code" = 2 ] && [ ! -s "$folder/out" ] && [ "$(wc -l <"$folder/err")" = 1 ] && grep -q KDA_CHECK_ISA "$folder/err" ||
    fail "KDA_CHECK_ISA=$1: exit code $code: $(cat "$folder/out" "$folder/err")"
}

cp -r "$source/cases" "$folder/cases"
for isa in "$@"; do
  if ! KDA_CHECK_ISA=$isa "$program" list devices >"$folder/devices" 2>/dev/null; then
    refused "$isa"
    continue
  fi
  run+=("$isa")
  grep -q "kernels for $isa\b" "$folder/devices" || fail "list devices does not say $isa: $(cat "$folder/devices")"
  mkdir "$folder/$isa"
  (cd "$folder/$isa" && KDA_CHECK_ISA=$isa "$program" run @smoke "$folder/cases/fixtures/fla_bf16_softplus_backward.h5" \
    --tolerance "$folder/cases/tolerances.toml" -q --json document.json) || fail "$isa: exit code $?"
  cmp "$folder/${run[0]}/document.json" "$folder/$isa/document.json" || fail "$isa: not the document of ${run[0]}"
done
[ "$(KDA_CHECK_ISA='' "$program" list devices)" = "$("$program" list devices)" ] || fail 'an empty value chooses'
refused x86_64_v5
refused 'baseline '
echo "${#run[@]} of $#: ${run[*]}"
[ ${#run[@]} -ge 1 ] && [ "$failures" = 0 ]
