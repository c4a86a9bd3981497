"""Serves a directory on a free port of 127.0.0.1 and writes the port to a file.

loopback_server.py DIRECTORY PORT_FILE

/stall/NAME sends half of NAME and then nothing more."""

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
