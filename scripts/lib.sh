# shellcheck shell=bash disable=SC2034
# What the scripts beside this file share. To be sourced by bash; sets `root` to the checkout.

unset CDPATH # by which cd finds other directories, and prints them
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Debian packages, in lines `PURPOSE: NAME…`, by what needs them; the last ones are for parts of scripts/test.
packages_build=("the build: cmake ninja-build gcc libc6-dev pkg-config libdnnl-dev libhwloc-dev libjansson-dev
    libmicrohttpd-dev libsodium-dev libunistring-dev libxxhash-dev")
packages_data=("fetching WikiText-2: curl ca-certificates unzip")
packages_tests=("the tests: g++ libcmocka-dev zip"
    "jobs of several processes, and hosts in network namespaces: libopenmpi-dev openmpi-bin iproute2"
    "comparing results with PyTorch, numpy and TensorBoard: python3 python3-numpy python3-torch
    libopenblas0-pthread python3-venv python3-pip")
packages_release=("the pages in a browser: chromium")
packages_lint=("analysing the sources: clang clang-format clang-tidy libomp-dev cppcheck shellcheck")
packages_fuzz=("fuzzing: clang libclang-rt-14-dev libomp-dev")
packages_install=("Debian packages: dpkg-dev lintian")
packages_arm64=("compiling for arm64: gcc-aarch64-linux-gnu libc6-dev-arm64-cross")

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Prints those of the named Debian packages that are not installed.
missing_packages() {
    local name
    for name in "$@"; do
        case $(dpkg-query -W -f '${Status}' "$name" 2>/dev/null) in
        *" installed") ;;
        *) printf '%s\n' "$name" ;;
        esac
    done
}

# Installs what is missing of the packages in lines `PURPOSE: NAME…`, and says what for; without root, says how and
# stops.
install_packages() { # LINE…
    local line names lacking missing=() said=
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "This is no Debian system, so nothing is installed; needed are, by their Debian names:"
        printf '  for %s\n' "$@" >&2
        return
    fi
    for line in "$@"; do
        read -rd '' -a names <<<"${line#*: }" || true
        mapfile -t lacking < <(missing_packages "${names[@]}")
        [ ${#lacking[@]} = 0 ] || said+="  for ${line%%: *}: ${lacking[*]}"$'\n'
        missing+=("${lacking[@]}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    line="apt-get update && apt-get install --no-install-recommends -y ${missing[*]}"
    [ "$(id -u)" = 0 ] || die "Packages are missing:
${said}Please run as root, then start this again:
$line"
    say "Installing Debian packages:
${said%$'\n'}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null >&2 || die "apt-get update failed; the whole line is: $line"
    apt-get install -qq --no-install-recommends -y "${missing[@]}" </dev/null >&2 ||
        die "Installing failed; the whole line is: $line"
}

# How many compilers and tests run at once: one a core. nproc takes OMP_NUM_THREADS for their number.
jobs_count() { env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2; }
