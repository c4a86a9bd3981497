# shellcheck shell=bash disable=SC2034
# What the scripts beside this file share. To be sourced by bash; sets `root` to the checkout.

unset CDPATH # by which cd finds other directories, and prints them
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What the program and the library are built from.
build_packages=(cmake ninja-build gcc libc6-dev pkg-config libdnnl-dev libhwloc-dev libjansson-dev
    libmicrohttpd-dev libsodium-dev libunistring-dev libxxhash-dev)
# What fetches WikiText-2.
data_packages=(curl ca-certificates unzip)
# What the tests and the lint need besides.
test_packages=(g++ libcmocka-dev clang clang-format clang-tidy libclang-rt-14-dev libomp-dev
    cppcheck shellcheck python3 python3-numpy python3-torch libopenblas0-pthread python3-venv python3-pip zip
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    libopenmpi-dev openmpi-bin iproute2 dpkg-dev chromium)

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

# Installs what is missing of the named Debian packages; without root, says how and stops.
install_packages() {
    local missing line
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "This is no Debian system, so nothing is installed; needed are, by their Debian names: $*"
        return
    fi
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    line="apt-get update && apt-get install --no-install-recommends -y ${missing[*]}"
    [ "$(id -u)" = 0 ] || die "Packages are missing. Please run as root, then start this again:
$line"
    say "Installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null >&2 || die "apt-get update failed; the whole line is: $line"
    apt-get install -qq --no-install-recommends -y "${missing[@]}" </dev/null >&2 ||
        die "Installing failed; the whole line is: $line"
}

# How many compilers and tests run at once: one a core. nproc takes OMP_NUM_THREADS for their number.
jobs_count() { env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2; }
