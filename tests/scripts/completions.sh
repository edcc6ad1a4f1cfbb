#!/usr/bin/env bash
# completions.sh PROGRAM: sources the completions that PROGRAM writes, in bash, and in zsh and fish where they are
# installed, and asks what they offer.
set -euo pipefail
program=$1 failures=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
touch mine.h5

# offers SHELL LINE WORD...: each WORD is offered at the end of LINE; a WORD that begins with '!' is not.
offers() {
  local shell=$1 line=$2 word
  shift 2
  offered=$("ask_$shell" "$line")
  for word in "$@"; do
    if [ "${word#!}" != "$word" ]; then
      ! grep -qxF -- "${word#!}" <<<"$offered" || fail "$shell" "$line" "offers ${word#!}"
    else
      grep -qxF -- "$word" <<<"$offered" || fail "$shell" "$line" "does not offer $word"
    fi
  done
}
fail() {
  failures=$((failures + 1))
  printf '%s: "%s" %s; it offers:\n%s\n' "$1" "$2" "$3" "$(head -n 12 <<<"$offered")" >&2
}

"$program" completions bash > bash.sh
# As readline calls it: words apart at COMP_WORDBREAKS are put together again by the script.
ask_bash() {
  bash --norc -c 'source ./bash.sh; COMP_LINE=$1 COMP_POINT=${#1}; _kda_check; printf "%s\n" "${COMPREPLY[@]}"' _ "$1"
}
offers bash 'kda-check ' run explain completions --version '!man'
offers bash 'kda-check b' bench '!run'
offers bash 'kda-check help e' explain
offers bash 'kda-check run ' corr_keys mine.h5 @smoke @ci
offers bash 'kda-check explain ' corr_keys mine.h5 '!@smoke'
offers bash 'kda-check run @sm' smoke              # bash keeps what stands before its word break, @
offers bash 'kda-check run mine.h5 --va' --variant '!--verbose'
offers bash 'kda-check run mine.h5 --variant ' naive recurrent chunk gpu-chunk '!mine.h5'
offers bash 'kda-check run --variant naive,re' naive,recurrent '!naive,chunk'
offers bash 'kda-check run --variant=naive,c' naive,chunk
offers bash 'kda-check run --dtype ' fp64 bf16 fixture
offers bash 'kda-check bench --dtype ' fp32 '!fixture'
offers bash 'kda-check run --color ' auto always never
offers bash 'kda-check run --color=al' always
offers bash 'kda-check run --limit sc' scaled_ulp=
offers bash 'kda-check run --arithmetic fl' fla flash-kda
offers bash 'kda-check run --arithmetic decay=p' pair pair-late
offers bash 'kda-check run --report ' text json
offers bash 'kda-check run -q mine.h5 --json ' mine.h5
offers bash 'kda-check list ' variants regimes
offers bash 'kda-check list --p' --probe
offers bash 'kda-check completions ' bash zsh fish
offers bash 'kda-check run --threads ' '!mine.h5'

"$program" completions zsh > _kda-check
if command -v zsh >/dev/null; then
  zsh -n _kda-check
  # A zsh in a pseudo-terminal, with a key that lists what it would insert.
  ask_zsh() {
    zsh -f -c '
      zmodload zsh/zpty
      zpty shell zsh -f -i
      zpty -w shell "PS1= PS2= ; fpath=($PWD \$fpath); autoload -U compinit; compinit -u -D; stty -echo 2>/dev/null"
      zpty -w shell "zstyle \":completion:*\" list-prompt \"\"; LISTMAX=10000 COLUMNS=200 LINES=1000"
      zpty -w shell "list() { compadd() { local -a them; builtin compadd -O them \"\$@\"; print -l -- FOUND\${^them} >> $PWD/zsh.out; builtin compadd \"\$@\" }; _main_complete; unfunction compadd }; zle -C list list-choices list; bindkey ^X list"
      rm -f zsh.out
      zpty -w shell "print ready > ready"
      for i in {1..100}; do [[ -e ready ]] && break; sleep 0.1; done
      zpty -w -n shell "$1"$(print -n "\x18")
      for i in {1..50}; do [[ -s zsh.out ]] && break; sleep 0.1; done
      sleep 0.2
      zpty -d shell' _ "$1" >/dev/null 2>&1 || true
    rm -f ready
    [ ! -e zsh.out ] || sed 's/^FOUND//' zsh.out
  }
  offers zsh 'kda-check b' bench
  offers zsh 'kda-check run @sm' @smoke
  offers zsh 'kda-check run --va' --variant
  offers zsh 'kda-check run --variant naive,re' recurrent
  offers zsh 'kda-check run --color ' auto always never
else
  echo 'zsh: not installed, its completions were not tried'
fi

"$program" completions fish > kda-check.fish
if command -v fish >/dev/null; then
  ask_fish() {
    HOME=$folder fish --no-config -c 'source kda-check.fish; complete --do-complete $argv[1] | string replace -r "\t.*" ""; true' "$1"
  }
  offers fish 'kda-check b' bench '!run'
  offers fish 'kda-check run ' corr_keys mine.h5 @smoke
  offers fish 'kda-check run --va' --variant
  offers fish 'kda-check run --variant naive,re' naive,recurrent
  offers fish 'kda-check run --color ' auto always never
  offers fish 'kda-check list ' variants regimes
else
  echo 'fish: not installed, its completions were not tried'
fi

# The manual page: every command and option of the help, and troff has nothing to say.
"$program" man > kda-check.1
for words in 'kda\\-check run' '\\-\\-shard' 'NO_COLOR' 'EXIT STATUS'; do
  grep -q -- "$words" kda-check.1 || { echo "man: no $words" >&2; failures=$((failures + 1)); }
done
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww -z kda-check.1 2>&1)
  [ -z "$warnings" ] || { printf 'groff: %s\n' "$warnings" >&2; failures=$((failures + 1)); }
fi
[ "$failures" = 0 ]
