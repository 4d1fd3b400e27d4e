#!/usr/bin/env bash
# Compiles the native core with every compiler that is there, warnings being errors, and runs what it makes.
#
#     scripts/check_compilers.sh [compiler …]
#
# Without names: those of g++, g++-13, clang++-14 and newer that are installed, and the same for 64-bit ARM. For
# x86-64 the kernel sets of this machine are compared with the portable one; emulated processors without AVX, and
# with AVX2 only, run what the first compiler made (Debian: qemu-user; some minutes). Files compiled for newer processors must not hold
# functions that others share: the linker would be free to take theirs. Bindings are left out, since nanobind is
# only there while a wheel is made; `CXX=… pip wheel . --config-settings cmake.define.STRETTO_WERROR=ON` has them.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/compilers
warnings="-std=c++17 -O3 -Wall -Wextra -Werror -ffp-contract=off -Icsrc"
avx2="-mavx2 -mfma -mf16c"
avx512="$avx2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512"

there() { command -v "${1%% *}" >/dev/null; }

# compile NAME COMPILER FLAGS FILES …
compile() {
    local folder=$out/$1 compiler=$2 flags=$3 file
    shift 3
    mkdir -p "$folder"
    for file in "$@"; do
        $compiler $warnings $flags -c "csrc/$file.cpp" -o "$folder/$(basename "$file").o"
    done
}

common="attention decoder formats forward kquants loop pack product probe probe_dots probe_features sampler threads vision
        kernels/portable kernels/select"

check_x86() {
    local name=$1 compiler=$2 quiet=
    # GCC 12 and 13 take the undefined operand in their own intrinsics for ours.
    [[ $compiler == *g++* && $compiler != *clang* ]] && quiet="-Wno-maybe-uninitialized -Wno-uninitialized"
    compile "$name" "$compiler" "" $common
    compile "$name" "$compiler" "$avx2" kernels/avx2
    compile "$name" "$compiler" "$avx512 $quiet" kernels/avx512
    compile "$name" "$compiler" "$avx512 $quiet -mamx-tile -mamx-int8" kernels/amx
    local shared
    shared=$(nm "$out/$name"/{avx2,avx512,amx}.o | grep -E ' [WVu] ' || true)
    [[ -z $shared ]] || { echo "$name: functions that others could get: $shared" >&2; exit 1; }
    $compiler $warnings -static -pthread tests/native/kernels_check.cpp "$out/$name"/*.o -o "$out/$name/check"
    "$out/$name/check"
    if [[ $name == "${names[0]}" ]] && there qemu-x86_64; then
        emulated "$name" Nehalem portable
        emulated "$name" Haswell "avx2 portable"
    fi
}

# emulated NAME CPU SETS: exactly these kernel sets run there.
emulated() {
    local found
    found=$(qemu-x86_64 -cpu "$2" "$out/$1/check" 2>/dev/null | sed 's/:.*//' | xargs)
    [[ $found == "$3" ]] || { echo "$1 on $2 has the kernels '$found', not '$3'" >&2; exit 1; }
    echo "$1 on an emulated $2: $found"
}

check_arm() {
    compile "$1" "$2" "" $common
    compile "$1" "$2" "-march=armv8.2-a+dotprod+fp16" kernels/neon
    echo "$1: compiled"
}

names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    for name in g++ g++-13 g++-14 clang++-14 clang++-15 clang++-16 clang++-19 aarch64-linux-gnu-g++; do
        there "$name" && names+=("$name")
    done
fi
for name in "${names[@]}"; do
    echo "== $name: $($name --version | head -n 1)"
    if [[ $name == aarch64* ]]; then
        check_arm "$name" "$name"
    else
        check_x86 "$name" "$name"
    fi
    if [[ $name == clang* ]] && there aarch64-linux-gnu-g++; then
        check_arm "$name-aarch64" "$name --target=aarch64-linux-gnu"
    fi
done
