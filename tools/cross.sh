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

sources=$(ls csrc/*.cpp csrc/kernels/*.cpp tests/engines/driver.cpp | grep -vE 'csrc/(binding|arrays|watch|signals)\.cpp')
if [ "$(uname -m)" != x86_64 ]; then sources=$(grep -v avx <<<"$sources"); fi
read_by=0
for compiler in clang++ x86_64-w64-mingw32-g++-posix; do
  if ! command -v "$compiler" >/dev/null; then
    echo "!!! NOT CHECKED WITH $compiler, WHICH IS NOT INSTALLED !!!"
    continue
  fi
  for source in $sources; do options_of "$source"; done |
    xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} sh -c "$compiler {}"
  echo "$compiler reads $(wc -w <<<"$sources") files without a warning"
  read_by=$((read_by + 1))
done
echo "$read_by of 2 compilers"
