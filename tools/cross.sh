#!/usr/bin/env bash
# Reads the engine's sources and its driver with other compilers than the one that built the extension, as strictly as
# they can: Clang, which macOS has, and GCC for Windows. Nothing is written. A compiler that is missing is left out, in
# capitals.
set -euo pipefail
cd "$(dirname "$0")/.."

OPTIONS="-std=c++20 -fsyntax-only -fopenmp-simd -Wall -Wextra -Wpedantic -Werror"
AVX512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma"

# The command for a source, with the instructions that CMakeLists.txt compiles it for.
options_of() {
  case $1 in
    *avx512*) echo "$OPTIONS $AVX512 $1" ;;
    *avx2*) echo "$OPTIONS -mavx2 -mfma $1" ;;
    *) echo "$OPTIONS $1" ;;
  esac
}

# Each a file, with what CMakeLists.txt defines for it: those of rules for each rule, and kernels for each set besides.
sources=$(ls csrc/*.cpp tests/engines/driver.cpp | grep -vE 'csrc/(binding|arrays|watch|signals|rule)\.cpp')
sets="baseline_any avx2_any avx2_low avx512_narrow avx512_low"
if [ "$(uname -m)" != x86_64 ]; then sets="baseline_any baseline_low"; fi
rules=$(ls csrc/printed/*.hpp | grep -vE '/(rules|storage)\.hpp')
of_rule() { echo "-DLAYERWISE_RULE=$(basename "$1" .hpp) -DLAYERWISE_HEADER=\\\"printed/$(basename "$1")\\\" -Icsrc $2"; }
for rule in $rules; do sources+=$'\n'$(of_rule "$rule" csrc/rule.cpp); done
for set in $sets; do
  of_set="-DLAYERWISE_SET=$set"
  case $set in
    *_low) of_set+=" -DLAYERWISE_LOW" ;;
    *_narrow) of_set+=" -DLAYERWISE_NARROW" ;;
  esac
  sources+=$'\n'"$of_set csrc/kernels/shared.cpp"
  # Each rule with the first set, and each set with the rules that have loops of their own: all others share LAMB's.
  for rule in $(if [ "$set" = baseline_any ]; then echo "$rules"; else echo csrc/printed/{lamb,adafactor}.hpp; fi); do
    sources+=$'\n'"$of_set $(of_rule "$rule" csrc/kernels/rule.cpp)"
  done
done
read_by=0
for compiler in clang++ x86_64-w64-mingw32-g++-posix; do
  if ! command -v "$compiler" >/dev/null; then
    echo "!!! NOT CHECKED WITH $compiler, WHICH IS NOT INSTALLED !!!"
    continue
  fi
  while read -r source; do options_of "$source"; done <<<"$sources" |
    tr '\n' '\0' | xargs -0 -P "$(getconf _NPROCESSORS_ONLN)" -I{} sh -c "$compiler {}"
  echo "$compiler reads $(wc -l <<<"$sources") files without a warning"
  read_by=$((read_by + 1))
done
echo "$read_by of 2 compilers"
