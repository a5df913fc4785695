# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A web service that remembers each request. Each line on stdin is a number of requests, which it sends to itself and answers
# with `ok`. With `reuse`, what it remembers is in memory that each request used for its page before and freed.

import http.server
import sys
import threading
import urllib.request

sessions = []


class Shop(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if "reuse" in sys.argv:
            render()
        remember(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"welcome")

    def log_message(self, *_):
        pass


def render():
    page = bytearray(100000)
    page[0] = len(page) % 7


def remember(path):
    cart = bytearray(60000 if "reuse" in sys.argv else 300000)  # the leak
    sessions.append((path, cart))


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    for n in range(int(line)):
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{n}").read()
    print("ok", flush=True)
