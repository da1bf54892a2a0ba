#!/usr/bin/env bash
# check.sh: search the model in every way the README lists, and say whether each
# search ended as it must. check.sh FLAGS...: one search, e.g. -DCHAIN -DCLONE.
set -euo pipefail
cd "$(dirname "$0")"
for tool in spin gcc; do
  command -v "$tool" >/dev/null || { echo "check.sh: $tool is not installed (Debian: apt-get install spin gcc)" >&2; exit 1; }
done
model=$PWD/lease.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# search FLAGS...: build the verifier with those flags and run it. The verdict is
# "holds", "refuted" or "unfinished"; the number of states is in $states, the
# assertion that failed in $why.
search() {
  spin -a "$@" "$model" >spin.txt || { cat spin.txt >&2; exit 1; }
  gcc -O2 -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM="${MEMORY_MB:-8000}" -w -o pan pan.c
  local rc=0
  timeout "${SECONDS_MAX:-3600}" ./pan -E -m3000000 >out.txt || rc=$?
  states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' out.txt)
  why=$(sed -n 's/.*assertion violated \(.*\) (at depth.*/\1/p' out.txt)
  if [ -n "$why" ]; then
    verdict=refuted
  elif [ "$rc" = 0 ] && grep -q 'errors: 0' out.txt && ! grep -qiE 'too small|out of memory|aborted|not complet' out.txt; then
    verdict=holds
  else
    verdict=unfinished
  fi
}

# must VERDICT FLAGS...
bad=0
must() {
  local want=$1
  shift
  local begun=$SECONDS
  search "$@"
  echo "$verdict${why:+ by $why} (must: $want)  states ${states:-?}  $((SECONDS - begun)) s  $*"
  [ "$verdict" = "$want" ] || bad=1
}

if [ $# -gt 0 ]; then
  search "$@"
  echo "$verdict${why:+ by $why}  states ${states:-?}  $*"
  exit
fi

clone=(-DCLONE -DTTL=1 -DTMAX=2)
must holds -DCHAIN
must holds -DCHAIN "${clone[@]}" -DPMAX=0
must refuted "${clone[@]}"
must refuted -DCHAIN -DNORECEIPT "${clone[@]}"
must refuted -DCHAIN -DVACATE "${clone[@]}"
must refuted -DCHAIN -DRESEND
must holds -DCHAIN "${clone[@]}"
exit $bad
