#!/usr/bin/env bash
# readme.sh PROGRAM SOURCE [DOCUMENT...]: runs every command of the blocks of README.md and docs/*.md that begin with
# "```sh run", each as a line by itself, in a folder for each document. Words behind two spaces or more are not part of it.
# It must exit with 0, or with the code of "(exit code N)"; a GPU, numpy and pytest are used where they are. A block that begins
# with "```python file NAME" is a file of that folder. Links must lead somewhere, to a heading where they name one.
set -euo pipefail
program=$1 source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir bin
ln -s "$program" bin/kda-check
export PATH="$folder/bin:$PATH"
documents=("$source/README.md" "$source"/docs/*.md)
[ $# -le 2 ] || documents=("${@:3}")

has_gpu=0 count=0 failures=0
fail() { failures=$((failures + 1)); printf '%s\n' "$*" >&2; }
# blocks WORDS DOCUMENT: the lines of its blocks that begin with "```WORDS".
blocks() { awk -v begin="^\`\`\`$1\$" '$0 ~ begin { inside = 1; next } /^```/ { inside = 0 } inside' "$2"; }

run_line() {
  local document=$1 line=$2 command=${2%%  *} words=${2#"${2%%  *}"} wanted=0 code=0
  if [[ $command =~ python3|pytest ]] && [ $has_python = 0 ]; then return; fi
  if [[ $words =~ \(exit\ code\ ([0-9]+)\) ]]; then wanted=${BASH_REMATCH[1]}; fi
  if [[ $command == *gpu* && $has_gpu = 0 ]]; then return; fi
  count=$((count + 1))
  bash -c "set -o pipefail; $command" >out 2>err </dev/null || code=$?
  cat out err >>"$folder/printed"
  [ "$code" = "$wanted" ] ||
    fail "$document: exit code $code: $command"$'\n'"$(tail -n 4 out; tail -n 4 err)"
}

python3 -c 'import numpy, pytest' 2>/dev/null && has_python=1 || has_python=0
export PYTHONPATH=$source/python KDA_CHECK_PROGRAM=$program PYTEST_ADDOPTS="-p no:cacheprovider -p kda_check.pytest_plugin"
if kda-check run tails:T=16 --variant gpu-recurrent --require gpu >/dev/null 2>&1; then has_gpu=1; fi
for path in "${documents[@]}"; do
  document=${path#"$source/"}
  lines=$(blocks "sh run" "$path")
  [ -n "$lines" ] || continue
  if [ $has_python = 0 ] && grep -q '^python3' <<<"$lines"; then continue; fi  # others read what these write
  mkdir "in ${document//\//-}"
  cd "in ${document//\//-}"
  ln -s "$source/cases" cases
  for name in FILE before after; do cp cases/fixtures/fla_bf16_prefill.h5 $name.h5; done
  while IFS= read -r name; do blocks "python file $name" "$path" >"$name"; done < <(sed -nE 's/^```python file (.*)$/\1/p' "$path")
  while IFS= read -r line; do
    [ -z "$line" ] || run_line "$document" "$line"
  done <<<"$lines"
  cd "$folder"
done

# Figures: no bit depends on the machine, so they are compared as they stand. Without numpy some commands did not run.
for path in "${documents[@]}"; do
  [ $has_python = 1 ] || break
  while IFS= read -r line; do
    pattern=$(sed -E 's/[][\\.*^$+?(){}|]/\\&/g; s/\\\.\\\.\\\./.*/g; s/ +/ +/g' <<<"${line#"${line%%[! ]*}"}")
    grep -qE -- "^ *$pattern *$" printed || fail "${path#"$source/"}: no command prints: $line"
  done < <(blocks "text printed" "$path" | grep -vE '^(\$ .*|[ .]*)$')
done
[ $has_python = 0 ] || python3 - "${documents[@]}" >&2 <<'end' || fail "sums that are wrong"
import re, sys
wrong = []
for path in sys.argv[1:]:
    for left, right in re.findall(r"((?:[\d.^-]+ [x/+] )+[\d.^-]+) = (\d+\.\d+)", open(path, encoding="utf-8").read()):
        value = eval(left.replace("x", "*").replace("^", "**"))
        wrong += [f"{path}: {left} = {value}, not {right}"] * (abs(value / float(right) - 1) > 5e-3)
sys.exit("\n".join(wrong) or 0)
end

# The examples in Python, where h5py is, on a kernel that answers 0: it must fail, in memory and from the file.
if python3 -c 'import h5py, numpy' 2>/dev/null; then
  count=$((count + 1))
  { echo 'import numpy as np
rows = np.random.default_rng(1)
q, k, v, g = (rows.standard_normal((1, 8, 2, 16)).astype(np.float32) for _ in range(4))
beta, g, o, ht, scale = g[..., 0] ** 2, -g ** 2, 0 * v, np.zeros((1, 2, 16, 16), np.float32), 0.25'
    blocks "python run" "$source/README.md"
    echo 'assert not report.passed and report["o"].verdict == "fail"'; } > example.py
  { PYTHONPATH="$source/python" KDA_CHECK_PROGRAM=$program python3 example.py && kda-check show mine.h5; } >out 2>err ||
    fail "the examples in Python: $(cat err)"
  code=0
  kda-check run mine.h5 -q >out 2>err || code=$?
  [ "$code" = 1 ] || fail "a kernel that answers 0: exit code $code"
fi

# What a document refers to, as [words](file.md#heading) or as docs/file.md, is there; docs/README.md has all documents.
headings() {  # of a document, as a git host makes links of them
  awk '/^```/ { code = !code } !code && /^#+ /' "$1" | sed -E 's/^#+ //; s/\[([^]]*)\]\([^)]*\)/\1/g' | tr '[:upper:]' '[:lower:]' |
    sed -E 's/[^a-z0-9_ -]//g; s/ /-/g'
}
for path in "$source"/*.md "$source"/docs/*.md; do
  while IFS= read -r link; do
    other=${link%%#*} heading=${link#"$other"}
    case $other in "") file=$path ;; docs/*) file=$source/$other ;; *) file=$(dirname "$path")/$other ;; esac
    if [ ! -e "$file" ]; then
      fail "${path#"$source/"} refers to $link, which is not there"
    elif [ -n "$heading" ] && ! headings "$file" | grep -qxF -- "${heading#"#"}"; then
      fail "${path#"$source/"} refers to $link, a heading that is not there"
    fi
  done < <({ grep -oE '\]\([^)[:space:]]+\)' "$path" | sed -E 's,^\]\((.*)\)$,\1,'; grep -oE 'docs/[a-zA-Z0-9_-]+\.(md|json)' "$path" || true; } |
             grep -vE '^[a-z]+:' | sort -u)
  # Files of the source tree, `src/kda/variants/naive.cpp` or as seen from src.
  while IFS= read -r other; do
    for file in $(eval "printf '%s ' $other"); do
      compgen -G "$source/$file" >/dev/null || compgen -G "$source/src/$file" >/dev/null || fail "${path#"$source/"} names $file, which is not there"
    done
  done < <(grep -oE '(`|^|[ (|])([a-z_]+/)+[A-Za-z0-9_.{},*]+\.(cpp|hpp|cu|cuh|sh|py|toml|cmake|txt)\b' "$path" | tr -d '`( |' |
             grep -vE '^(path|share|build|answers|fixtures)/' | sort -u)
  name=$(basename "$path")
  [ "$(dirname "$path")" = "$source" ] || [ "$name" = README.md ] || grep -q "($name[)#]" "$source/docs/README.md" || fail "docs/README.md lacks $name"
done

# Words that the glossary has replaced, in documents and in --help.
old='\bbut for\b|\bheld (against|to)\b|\blaws?\b[^.]|\bmanner\b|\bhonest|\bforeseen\b|\bongoing\b|recorded answer|can the gate fail'
! grep -nEi "$old" "${documents[@]}" <(kda-check man) >&2 || fail "words that the glossary has replaced"
echo "$count commands"
[ "$count" -ge 10 ] && [ "$failures" = 0 ]
