#!/bin/bash
# The sluice_cuda.so that nvcc has built: where nvcc is, it is there, with code for sm_80 and sm_90, and the
# program opens it. No GPU is needed. What cannot be opened is a sentence.
. "$(dirname "$0")/../support/script.sh"

build=$(CDPATH='' cd "$(dirname "$program")/.." && pwd)
object=$build/lib/sluice/sluice_cuda.so
is_configured() { grep -qE "^$1" "$build/CMakeCache.txt"; } # REGEX

nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || skip "there is no nvcc"
release=$("$nvcc" --version | grep -oP 'release \K[0-9]+')
[ "$release" -ge 12 ] || skip "nvcc is of CUDA $release, older than 12"
! is_configured 'SLUICE_CUDA:STRING=OFF' || skip "the build is configured with SLUICE_CUDA=OFF"
! is_configured 'SLUICE_SANITIZE:STRING=(address|thread)' || skip "a build with a sanitizer has no CUDA devices"

[ -f "$object" ] || fail "$nvcc is there, but CMake has left the CUDA devices out: see why with -DSLUICE_CUDA=ON"
if is_configured 'CMAKE_CUDA_ARCHITECTURES:STRING=80-real;90$'; then
    # Each kernel's code has the command that made it.
    for architecture in sm_80 sm_90; do
        found=$(strings -a "$object" | grep -c -e "-arch $architecture ") || true
        [ "$found" = "$(find "$source/src/device/cuda/kernels" -name '*.cu' | wc -l)" ] ||
            fail "$object has code for $architecture of $found files in src/device/cuda/kernels"
    done
else
    left_out="the build is configured for other architectures than sm_80 and sm_90"
fi

# Runs a program on cuda:0, where no GPU is visible.
refused() { # TEXT PROGRAM
    ! CUDA_VISIBLE_DEVICES='' "$2" train --data "$scratch/text" --devices cuda:0 >"$scratch/out" 2>&1 ||
        fail "$2 trains on cuda:0 without a GPU"
    grep -qE "$1" "$scratch/out" || fail "expected: $1; got:"
}

"$program" data --synthetic "$scratch/text" --tokens 4000 >"$scratch/out"
refused '^sluice: CUDA finds no GPU: .' "$program"

# A copy of the program finds nothing, or what lies in its own lib/sluice.
mkdir -p "$scratch/bin" "$scratch/lib/sluice"
alone=$scratch/bin/sluice
cp "$program" "$alone"
copied=$scratch/lib/sluice/sluice_cuda.so
installed=$(grep -oP '^CMAKE_INSTALL_PREFIX:PATH=\K.*' "$build/CMakeCache.txt")/lib/sluice
if [ -e "$installed/sluice_cuda.so" ]; then
    left_out="a sluice_cuda.so is installed in $installed, which a program without its own would open"
else
    refused "^sluice: cuda:0: sluice_cuda.so was not found, neither on the program's library path nor in /" "$alone"
fi
cp "$object" "$copied"
refused '^sluice: CUDA finds no GPU: .' "$alone"
gcc -shared -x c /dev/null -o "$scratch/libgone.so"
gcc -shared -x c /dev/null -o "$copied" -Wl,--no-as-needed -L"$scratch" -lgone
rm "$scratch/libgone.so"
refused '^sluice: cuda:0: there is no CUDA on this machine: libgone.so: cannot open shared object file' "$alone"
gcc -shared -x c /dev/null -o "$copied"
refused '^sluice: cuda:0: sluice_cuda.so is not a plugin of sluice: .*: undefined symbol: sli_cuda_open' "$alone"

[ -z "${left_out-}" ] || skip "$left_out"
