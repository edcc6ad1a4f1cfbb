#!/usr/bin/env bash
# readme.sh PROGRAM SOURCE: runs every command of the blocks of README.md that begin with "```sh run", each as a line by
# itself. Words behind two spaces or more say what it does and are not part of it. A command must exit with 0, or with
# the code that its words name as "(exit code N)"; those that name a GPU are run where one is.
set -euo pipefail
program=$1 source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir bin
ln -s "$program" bin/kda-check
export PATH="$folder/bin:$PATH"
cp -r "$source/cases" cases
for name in FILE mine before after; do cp "$source/cases/fixtures/fla_bf16_prefill.h5" $name.h5; done

has_gpu=0 count=0 failures=0
if kda-check run FILE.h5 --variant gpu-recurrent --require gpu >/dev/null 2>&1; then has_gpu=1; fi
while IFS= read -r line; do
  [ -n "$line" ] || continue
  command=${line%%  *} words=${line#"${line%%  *}"} wanted=0 code=0
  if [[ $words =~ \(exit\ code\ ([0-9]+)\) ]]; then wanted=${BASH_REMATCH[1]}; fi
  if [[ $command == *gpu* && $has_gpu = 0 ]]; then continue; fi
  count=$((count + 1))
  bash -c "set -o pipefail; $command" >out 2>err </dev/null || code=$?
  [ "$code" = "$wanted" ] || {
      failures=$((failures + 1))
      printf 'exit code %s: %s\n%s\n' "$code" "$command" "$(tail -n 4 out; tail -n 4 err)" >&2
    }
done < <(awk '/^```sh run/ { inside = 1; next } /^```/ { inside = 0 } inside' "$source/README.md")

# The example in Python, where h5py is, on a kernel that answers 0: it is the file that is tested.
if python3 -c 'import h5py, numpy' 2>/dev/null; then
  count=$((count + 1))
  { echo 'import numpy as np
rows = np.random.default_rng(1)
q, k, v, g = (rows.standard_normal((1, 8, 2, 16)).astype(np.float32) for _ in range(4))
beta, g, o = g[..., 0] ** 2, -g ** 2, 0 * v'
    awk '/^```python run/ { inside = 1; next } /^```/ { inside = 0 } inside' "$source/README.md"; } > example.py
  rm mine.h5
  { python3 example.py && kda-check show mine.h5; } >out 2>err ||
    { failures=$((failures + 1)); printf 'the example in Python:\n%s\n' "$(cat err)" >&2; }
  code=0
  kda-check run mine.h5 -q >out 2>err || code=$?
  [ "$code" = 1 ] || { failures=$((failures + 1)); echo "a kernel that answers 0: exit code $code" >&2; }
fi
echo "$count commands"
[ "$count" -ge 15 ] && [ "$failures" = 0 ]
