#!/usr/bin/env bash
# The ARM kernels: compared with the portable ones, and what their loops take (scripts/check_arm_loops.py).
#
# On an ARM machine its own compiler and processor are taken, elsewhere a cross compiler and qemu. A processor without i8mm
# leaves that set to qemu. What cannot be done is skipped and says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/arm
flags="-std=c++17 -O3 -Wall -Wextra -Werror -ffp-contract=off -Icsrc"
neon="-march=armv8.2-a+dotprod+fp16"

compiler=aarch64-linux-gnu-g++ run="qemu-aarch64 -cpu max" debian="g++-aarch64-linux-gnu, qemu-user"
[[ $(uname -m) == aarch64 ]] && compiler=${CXX:-g++} run= debian=g++
for tool in $compiler ${run%% *}; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is needed (Debian: $debian)"; exit 0; }
done

# newer THAN FILES …: whether one of them is newer than the first.
newer() {
    [[ ! -e $1 ]] || [[ -n $(find "${@:2}" -newer "$1" -print -quit) ]]
}
mkdir -p $out
if newer $out/kernels_check csrc tests/native/kernels_check.cpp scripts/check_arm.sh; then
    $compiler $flags $neon -c csrc/kernels/neon/neon.cpp -o $out/neon.o
    $compiler $flags $neon+i8mm -c csrc/kernels/neon/i8mm.cpp -o $out/i8mm.o
    $compiler $flags $neon -c csrc/kernels/neon/direct_neon.cpp -o $out/direct_neon.o
    $compiler $flags -static -o $out/kernels_check tests/native/kernels_check.cpp $out/*neon.o $out/i8mm.o \
        csrc/weights/{blocks,formats,grids,kquants,pack}.cpp csrc/hardware/features.cpp \
        csrc/kernels/select.cpp csrc/kernels/portable/{portable,direct_portable}.cpp
fi
done=$($run $out/kernels_check)
echo "$done"
if [[ $done != *i8mm:* ]]; then
    if command -v qemu-aarch64 >/dev/null; then
        qemu-aarch64 -cpu max $out/kernels_check i8mm
    else
        echo "i8mm skipped: this processor does not have it, and qemu-aarch64 is needed (Debian: qemu-user)"
    fi
fi
"${PYTHON:-python3}" scripts/check_arm_loops.py
