#!/usr/bin/env bash
# smoke.sh PROGRAM SOURCE: every command on small inputs, good and damaged, has the exit code that it should. For a
# program built with sanitizers above all: whatever they find ends a process with another one.
set -euo pipefail
program=$(realpath "$1") source=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0 commands=0

# expect CODE WORDS...
expect() {
  local wanted=$1 code=0
  shift
  commands=$((commands + 1))
  "$program" "$@" >out 2>err </dev/null || code=$?
  [ "$code" = "$wanted" ] && return
  failures=$((failures + 1))
  { echo "kda-check $*: exit code $code, wanted $wanted"; tail -n 30 err; } >&2
}

fixtures=$source/cases/fixtures
tiny=control:T=70,K=8,V=8,H=2

# Judging: forwards and backwards, every fixture, every extra question.
for file in "$fixtures"/*.h5; do
  expect 0 run "$file" -q --dtype fixture --tolerance "$source/cases/tolerances.toml"
done
for file in "$source"/tests/fixtures_good/*.h5; do expect 0 show "$file"; done
expect 0 run "$tiny" "$tiny,seed=2" --dtype fp64,fp32,bf16,fp16 -v
expect 0 run "$tiny" --stages --variant chunk --report html=page.html --report junit=junit.xml --report github=notes --report summary=s.md
expect 1 run "$tiny" --variant chunk --limit max_ulp=exact
expect 0 run lb_real:T=20,H=2,K=8,V=8 --variant recurrent,chunk --invariants -q
expect 1 run "$tiny" -q --external 'false {in} {out}' --variant recurrent --recorded none
expect 0 run @smoke -q --dry-run
expect 0 run "$fixtures/fla_fp32_small_backward.h5" -q --backward --threads 3

# Gates.
expect 0 run "$tiny" -q --baseline main.tsv --update-baseline
expect 0 run "$tiny" -q --baseline main.tsv
for shard in 1 2; do expect 0 run "$tiny" "$tiny,seed=3" -q --shard "$shard/2" --json "part$shard.json"; done
expect 0 merge part1.json part2.json --json whole.json
expect 3 merge part1.json

# Explaining.
expect 0 explain "$fixtures/fla_fp32_small.h5" --recorded fla_chunk
expect 0 explain "$fixtures/fla_fp32_small.h5" --between fla_chunk,recurrent
expect 0 explain "$fixtures/fla_fp32_small.h5" --only faults,growth,overflow --window 16
expect 0 power "$tiny"

# Making and looking.
expect 0 make "$tiny" -o made.h5
expect 0 capture made.h5 --variant recurrent,chunk -o captured.h5
expect 0 show captured.h5
cp captured.h5 same.h5
expect 0 diff captured.h5:recurrent@cpu same.h5:recurrent@cpu
expect 1 diff captured.h5:recurrent@cpu captured.h5:chunk@cpu
expect 0 list
expect 0 completions bash
expect 0 man
expect 0 run --help
expect 2 run "$tiny" --vairant chunk
expect 3 run nowhere.h5

# Files made to harm.
for file in "$source"/tests/fixtures_bad/*.h5; do
  [ "$(basename "$file")" = good.h5 ] || expect 3 run "$file" -q
done
printf 'no baseline' >bad.tsv
expect 3 run "$tiny" --baseline bad.tsv
printf '[[rule]' >bad.toml
expect 3 run "$tiny" --tolerance bad.toml
printf "mine.h5 'open\n" >bad.txt
expect 3 run @./bad.txt
printf '{"schema_version": 2' >bad.json
expect 3 merge bad.json

echo "$commands commands, $failures wrong"
[ "$failures" = 0 ]
