#!/usr/bin/env bash
# Compiles the native core with every compiler that is there, warnings being errors, and runs what it makes.
#
#     scripts/check_compilers.sh [compiler …]
#
# Without names: those of g++, g++-13, clang++-14 and newer that are installed, and the same for the other family (x86-64
# or 64-bit ARM; Debian: g++-x86-64-linux-gnu, g++-aarch64-linux-gnu). The kernel sets of this machine are compared with
# the portable one. What the first compiler of each family made is run by emulated processors as well (Debian: qemu-user;
# some minutes): without AVX and with AVX2 only, without dot products, with them, with i8mm. Nothing emulates AVX-512 and
# AMX, which are only compiled where the machine lacks them. Files compiled for newer processors must not hold functions
# that others share: the linker would be free to take theirs. Bindings are left out, since nanobind is only there
# while a wheel is made; `CXX=… pip wheel . --config-settings cmake.define.STRETTO_WERROR=ON` has them.
#
# Clang also reads for macOS what has assembler in it or asks the system, and assembles the loops for Apple's object format.
# Without Apple's SDK that is done with the headers of GNU's libraries for ARM and a declaration in scripts/apple: it shows
# that the source and the assembler are accepted, not that the SDK fits, and nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/compilers
warnings="-std=c++17 -O3 -Wall -Wextra -Werror -ffp-contract=off -Icsrc"
avx2="-mavx2 -mfma -mf16c"
avx512="$avx2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512"
neon="-march=armv8.2-a+dotprod+fp16"
common="hardware/dots hardware/features hardware/probe kernels/portable/direct_portable kernels/portable/portable kernels/product
        kernels/select model/attention model/decoder model/experts model/forward model/loop sampling/logits_row sampling/mixture
        sampling/sampler threads/pool vision/vision weights/blocks weights/formats weights/grids
        weights/kquants weights/pack"
declare -A emulated_with  # the first compiler of each family

there() { command -v "${1%% *}" >/dev/null; }

# family COMPILER: x86_64 or aarch64
family() { $1 -dumpmachine | sed 's/-.*//; s/arm64/aarch64/'; }

# compile NAME COMPILER FLAGS FILES …
compile() {
    local folder=$out/$1 compiler=$2 flags=$3 file
    shift 3
    mkdir -p "$folder"
    for file in "$@"; do
        $compiler $warnings $flags -c "csrc/$file.cpp" -o "$folder/$(basename "$file").o"
    done
}

# unshared NAME FILES …: none of them has a function that others could get.
unshared() {
    local name=$1 shared file
    shift
    for file in "$@"; do
        shared=$(nm "$out/$name/$file.o" | grep -E ' [WVu] ' || true)
        [[ -z $shared ]] || { echo "$name, $file: functions that others could get: $shared" >&2; exit 1; }
    done
}

# emulated NAME EMULATOR CPU SETS: exactly these kernel sets run there.
emulated() {
    local found
    found=$(QEMU_LD_PREFIX=/usr/${2#qemu-}-linux-gnu "$2" -cpu "$3" "$out/$1/check" 2>/dev/null | sed 's/:.*//' | xargs)
    [[ $found == "$4" ]] || { echo "$1 on $3 has the kernels '$found', not '$4'" >&2; exit 1; }
    echo "$1 on an emulated $3: $found"
}

check() {
    local name=$1 compiler=$2 family quiet= static=
    family=$(family "$compiler")
    rm -rf "${out:?}/$name"  # the objects of files that are gone
    compile "$name" "$compiler" "" $common
    if [[ $family == x86_64 ]]; then
        # GCC 12 and 13 take the undefined operand in their own intrinsics for ours.
        [[ $compiler == *g++* && $compiler != *clang* ]] && quiet="-Wno-maybe-uninitialized -Wno-uninitialized"
        compile "$name" "$compiler" "$avx2" kernels/x86/avx2 kernels/x86/direct_avx2
        compile "$name" "$compiler" "$avx512 $quiet" kernels/x86/avx512 kernels/x86/direct_avx512
        compile "$name" "$compiler" "$avx512 $quiet -mamx-tile -mamx-int8" kernels/x86/amx
        unshared "$name" avx2 avx512 amx direct_avx2 direct_avx512
    else
        compile "$name" "$compiler" "$neon" kernels/neon/neon kernels/neon/direct_neon
        compile "$name" "$compiler" "$neon+i8mm" kernels/neon/i8mm
        unshared "$name" neon i8mm direct_neon
    fi
    # Debian's cross libraries have no libm to link statically.
    [[ $family == "$(uname -m)" ]] && static=-static
    $compiler $warnings $static -pthread tests/native/kernels_check.cpp "$out/$name"/*.o -o "$out/$name/check"
    echo "$name: compiled for $family"
    [[ $family == "$(uname -m)" ]] && "$out/$name/check"
    if [[ -z ${emulated_with[$family]:-} ]] && there "qemu-$family"; then
        emulated_with[$family]=$name
        if [[ $family == x86_64 ]]; then
            emulated "$name" qemu-x86_64 Nehalem portable
            emulated "$name" qemu-x86_64 Haswell "avx2 portable"
        else
            emulated "$name" qemu-aarch64 cortex-a57 portable
            emulated "$name" qemu-aarch64 neoverse-n1 "neon portable"
            emulated "$name" qemu-aarch64 max "i8mm neon portable"
        fi
    fi
    return 0
}

# The folders where a GCC for ARM looks for headers, but for its own.
arm_headers() {
    "$1" -E -x c++ -v /dev/null 2>&1 >/dev/null | sed -n '/^#include </,/^End/p' | grep '^ ' | grep -v '/lib/gcc' |
        sed 's/^ */-isystem /' | xargs
}

check_apple() {
    local name=$1-apple arm="$1 --target=aarch64-linux-gnu" apple="$1 --target=arm64-apple-macos12" headers file
    headers=$(arm_headers "$2")
    mkdir -p "$out/$name"
    for file in kernels/portable/portable kernels/select kernels/neon/neon kernels/neon/direct_neon kernels/neon/i8mm hardware/dots hardware/features; do
        # GNU's headers define __nonnull as a function, Apple's compilers as a qualifier.
        $apple $warnings $neon+i8mm -U__nonnull -D_GNU_SOURCE -nostdinc++ -isystem scripts/apple $headers -fsyntax-only "csrc/$file.cpp"
    done
    for file in neon i8mm; do
        $arm $warnings $neon+i8mm -S "csrc/kernels/neon/$file.cpp" -o "$out/$name/$file.s"
        sed -n '/^[[:space:]]*\/\/APP/,/^[[:space:]]*\/\/NO_APP/p' "$out/$name/$file.s" >"$out/$name/$file.loops.s"
        [[ -s $out/$name/$file.loops.s ]] || { echo "$name, $file: no assembler was found" >&2; exit 1; }
        $apple $neon+i8mm -c "$out/$name/$file.loops.s" -o "$out/$name/$file.o"
    done
    echo "$name: accepted for macOS on ARM, with GNU's headers"
}

arm_gcc=
for name in aarch64-linux-gnu-g++ g++; do
    if [[ -z $arm_gcc ]] && there $name && [[ $(family $name) == aarch64 ]]; then arm_gcc=$name; fi
done
other=$([[ $(uname -m) == x86_64 ]] && echo aarch64 || echo x86_64)
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    for name in g++ g++-13 g++-14 clang++-14 clang++-15 clang++-16 clang++-19 "$other-linux-gnu-g++"; do
        there "$name" && names+=("$name")
    done
fi
for name in "${names[@]}"; do
    echo "== $name: $($name --version | head -n 1)"
    check "$name" "$name"
    if [[ $name == clang* ]]; then
        there "$other-linux-gnu-g++" && check "$name-$other" "$name --target=$other-linux-gnu"
        [[ -z $arm_gcc ]] || check_apple "$name" "$arm_gcc"
    fi
done
