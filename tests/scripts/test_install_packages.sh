#!/bin/bash
# install_packages of scripts/lib.sh, with stand-ins for dpkg-query, apt-get and id.
set -u
source_dir=${SLUICE_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$source_dir/scripts/lib.sh"

user=0
apt_status=0
calls=
id() { echo "$user"; }
dpkg-query() { # -W -f FORMAT NAME: `gone` was removed, `absent*` were never installed
    case $4 in
    gone) echo "deinstall ok config-files" ;;
    absent*) return 1 ;;
    *) echo "install ok installed" ;;
    esac
}
apt-get() {
    echo "apt-get $*" >&3
    return "$apt_status"
}

failures=0
run() { # EXPECTED-STATUS PACKAGES…
    local expected=$1 status
    shift
    messages=$( (install_packages "$@") 2>&1 3>"$calls_file" )
    status=$?
    calls=$(cat "$calls_file")
    [ "$status" = "$expected" ] || fail "status $status, expected $expected: $messages"
}
fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}
calls_file=$(mktemp)
trap 'rm -f "$calls_file"' EXIT

run 0 here too
[ -z "$calls" ] || fail "nothing is missing, but: $calls"

run 0 here absent1 gone absent2
[ "$calls" = "apt-get update -qq
apt-get install -qq --no-install-recommends -y absent1 gone absent2" ] || fail "as root: $calls"

user=1000
run 1 here absent1 gone
[ -z "$calls" ] || fail "without root, but: $calls"
line="apt-get update && apt-get install --no-install-recommends -y absent1 gone"
grep -qxF "$line" <<<"$messages" || fail "without root the line is not printed: $messages"
run 0 here
[ -z "$messages" ] || fail "without root and nothing missing, but: $messages"

user=0
apt_status=100
run 1 absent1
grep -qF "apt-get update failed" <<<"$messages" || fail "a failing update is not said: $messages"

[ "$failures" = 0 ]
