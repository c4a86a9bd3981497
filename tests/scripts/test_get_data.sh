#!/bin/bash
# scripts/get-data, in a checkout of its own, against a server on loopback: which data it chooses,
# and that nothing half-written stays behind.
set -u
source_dir=${SLUICE_SOURCE_DIR:-$(CDPATH='' cd "$(dirname "$0")/../.." && pwd)}
for tool in python3 curl zip unzip md5sum; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed" && exit 77; }
done

scratch=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill "$server"
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 1' INT TERM

checkout=$scratch/checkout
mkdir -p "$checkout/scripts" "$checkout/build/bin" "$scratch/served" "$scratch/wikitext-2"
cp "$source_dir/scripts/get-data" "$source_dir/scripts/lib.sh" "$checkout/scripts/"
for split in train valid test; do
    echo "the $split split" >"$scratch/wikitext-2/wiki.$split.tokens"
    head -c 50000 /dev/urandom >>"$scratch/wikitext-2/wiki.$split.tokens"
done
(cd "$scratch" && zip -q -r served/good.zip wikitext-2)
(cd "$scratch" && mkdir other && cp wikitext-2/wiki.train.tokens other/ &&
    zip -q -r served/incomplete.zip other)
head -c 60000 "$scratch/served/good.zip" >"$scratch/served/cut.zip"

# Stands for build/bin/sluice: `data --synthetic DIRECTORY`.
cat >"$checkout/build/bin/sluice" <<'PROGRAM'
#!/bin/bash
[ "$1 $2" = "data --synthetic" ] || exit 2
mkdir -p "$3"
for split in train valid test; do echo made >"$3/$split.txt"; done
[ -z "${FAKE_PROGRAM_FAILS:-}" ]
PROGRAM
chmod +x "$checkout/build/bin/sluice"

unset SLUICE_DATA SLUICE_PROGRAM http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
SLUICE_DATA_MD5=$(md5sum <"$scratch/served/good.zip" | cut -d' ' -f1)
export SLUICE_DATA_MD5

# Serves a directory on a free port of 127.0.0.1 and writes the port to a file. /stall/NAME sends half of
# NAME and then nothing more.
cat >"$scratch/server.py" <<'SERVER'
import functools
import http.server
import os
import sys
import time


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if not self.path.startswith("/stall/"):
            super().do_GET()
            return
        with open(os.path.join(self.directory, os.path.basename(self.path)), "rb") as file:
            content = file.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        time.sleep(600)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


directory, port_file = sys.argv[1:]
server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=directory))
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
SERVER
python3 "$scratch/server.py" "$scratch/served" "$scratch/port" &
server=$!
for _ in $(seq 200); do
    [ ! -f "$scratch/port" ] || break
    sleep 0.05
done
address=http://127.0.0.1:$(cat "$scratch/port") || exit 1

# Runs get-data: `output` is its last line, `status` its exit status; its messages go to a file.
get_data() {
    output=$("$checkout/scripts/get-data" "$@" 2>"$scratch/messages" </dev/null)
    status=$?
    output=${output##*$'\n'}
}

failures=0
check() { # WHAT COMMAND…
    local what=$1
    shift
    if "$@"; then
        echo "ok: $what"
    else
        echo "FAILED: $what; status $status, output '$output', messages:"
        cat "$scratch/messages"
        failures=$((failures + 1))
    fi
}
chose() { [ "$status" = 0 ] && [ "$output" = "$1" ]; }
refused() { [ "$status" = 1 ] && [ -z "$output" ]; }
said() { grep -qF -- "$1" "$scratch/messages"; }
unpacked() { cmp -s "$scratch/wikitext-2/wiki.test.tokens" "$checkout/data/wikitext-2/wiki.test.tokens"; }
data_holds() { [ "$(ls -A "$checkout/data" 2>/dev/null | tr '\n' ' ')" = "$1" ]; }
reset() { rm -rf "$checkout/data"; }

export SLUICE_DATA_URLS="$address/good.zip"
get_data
check "a good archive is unpacked" chose "$checkout/data/wikitext-2"
check "its content is that of the archive" unpacked
check "what was used is said" said "WikiText-2 from $address/good.zip"
check "nothing else is left" data_holds "wikitext-2 "

SLUICE_DATA_URLS="$address/absent.zip" get_data
check "the second time nothing is fetched" chose "$checkout/data/wikitext-2"
check "and that is said" said "Data: WikiText-2 in $checkout/data/wikitext-2"

reset
SLUICE_DATA_URLS="$address/cut.zip $address/good.zip" get_data
check "after a corrupted archive the next address is used" chose "$checkout/data/wikitext-2"
check "the wrong checksum is said" said "that failed: its MD5 is"
check "the right archive was unpacked" unpacked

reset
SLUICE_DATA_URLS="$address/absent.zip $address/good.zip" get_data
check "after a 404 the next address is used" chose "$checkout/data/wikitext-2"
check "the 404 is said" said "404"

reset
incomplete_md5=$(md5sum <"$scratch/served/incomplete.zip" | cut -d' ' -f1)
SLUICE_DATA_MD5=$incomplete_md5 SLUICE_DATA_URLS="$address/incomplete.zip" get_data
check "an archive of something else is refused" said "cannot be unpacked to wikitext-2"
check "and a synthetic text takes its place" chose "$checkout/data/synthetic"

reset
SLUICE_DATA_URLS="http://127.0.0.1:1/good.zip $address/absent.zip $address/cut.zip" get_data
check "when all addresses fail a synthetic text is made" chose "$checkout/data/synthetic"
check "that it takes WikiText-2's place is said" said "so a synthetic text takes its place"
check "and nothing else is left" data_holds "synthetic "

reset
FAKE_PROGRAM_FAILS=1 SLUICE_DATA_URLS="$address/absent.zip" get_data
check "a failing generator is an error" refused
check "that leaves nothing" data_holds ""

# The archive stalls half-way; get-data is told to stop once the first half has arrived.
interrupt_download() { # SIGNAL
    "$checkout/scripts/get-data" >/dev/null 2>"$scratch/messages" </dev/null &
    local started=$!
    for _ in $(seq 400); do
        [ -z "$(find "$checkout/data" -name archive.zip -size +0 2>/dev/null)" ] || break
        sleep 0.05
    done
    check "the download had begun" test -n "$(find "$checkout/data" -name archive.zip)"
    kill "-$1" "$started"
    wait "$started"
    status=$?
    output=
}
reset
SLUICE_DATA_URLS="$address/stall/good.zip" interrupt_download TERM
check "an interrupted download is no success" test "$status" = 143
check "and leaves nothing half-written" data_holds ""
check "not even a running curl" test -z "$(pgrep -f "$address/stall/good.zip")"

reset
mkdir -p "$checkout/data/wikitext-2"
get_data
check "an empty data/wikitext-2 is filled" chose "$checkout/data/wikitext-2"
rm "$checkout/data/wikitext-2/wiki.test.tokens"
get_data
check "an incomplete data/wikitext-2 is refused, not overwritten" refused
check "with what to do" said "please complete or remove it"

get_data "$scratch/wikitext-2"
check "a directory as argument comes first" chose "$scratch/wikitext-2"
SLUICE_DATA=$checkout/data/wikitext-2 get_data "$scratch/wikitext-2"
check "even before SLUICE_DATA" chose "$scratch/wikitext-2"
SLUICE_DATA=$scratch/wikitext-2 get_data
check "SLUICE_DATA comes before the checkout's data" chose "$scratch/wikitext-2"
check "and is named as the reason" said "named by SLUICE_DATA"
get_data --help
check "an option, of which there is none, is answered with the usage" said "Usage: scripts/get-data"
get_data "$scratch/served"
check "a directory without data is refused" refused
SLUICE_DATA=$scratch/absent get_data
check "so is one that does not exist" refused

echo "$failures failed"
[ "$failures" = 0 ]
