#!/usr/bin/env python3
"""A recorder with made-up data, for the tests of the page and for work on it: serves the page and /v4.

    recorder/tests/page/mock.py [PORT]

Prints its address. Each node is a scenario: usual, busy (1,000 rows a second), hostile, quiet, empty, awaited, lossy.
`POST /mock?refuse=STATUS` makes it refuse all requests to /v4 (0: no more), `POST /mock?drop=1` ends its streams.
"""

import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).resolve().parent
WEB = HERE.parents[1] / "src" / "web"
VECTORS = json.loads((HERE.parent / "data" / "vectors.json").read_text())
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
START = time.time_ns()
SECOND = 10**9
# Name: messages at the start, messages per second.
NODES = {"usual": (3000, 4), "busy": (5000, 1000), "hostile": (300, 0), "quiet": (300, 0), "empty": (0, 0), "awaited": (0, 0), "lossy": (500, 20)}
PEERS = [("203.0.113.7:9732", "idso4JJr6ir2XYgwoF9aJNWi2pr5WW"), ("[2001:db8::1]:9733", "idrSqRyWxqVNiYiLfYj9LTPMRFPQNa"), ("198.51.100.23:9732", "idtH2jW5Fg7kdnAmHMx1sTDMRJXdCs"), ("203.0.113.99:41310", None)]
EXAMPLES = [(m["kind"], m["json"], m["plain"]) for m in VECTORS["messages"] if "plain" in m]
HANDSHAKE = [
    ("connection_message", {"port": 9732, "public_key": "2bfdda94", "version": {"chain_name": "TEZOS_MAINNET", "distributed_db_version": 2, "p2p_version": 1}}, "2604" * 50),
    ("metadata", {"disable_mempool": False, "private_node": False}, "0000"),
    ("ack_message", "Ack", "00"),
]
CATEGORY = {"connection_message": "connection", "metadata": "meta", "ack_message": "ack"}
HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=alert(1)>\u202egnorw\u2066 \x00\x1b[31m\u200b'\"&amp; " + "long" * 3000
LEVELS = ["Info", "Info", "Notice", "Info", "Warning", "Debug", "Info", "Error", "Notice", "Fatal", "Trace"]
LINES = ["head is now BL5NwoeH3REiv67fHrkeJfJFcy21g9wojcESiaADxKEJPCrfdEx (level 1234567)", "peer idso4JJr6ir2XYgwoF9aJNWi2pr5WW disconnected", "block validated in 121 ms", "too few connections (3)", "cannot reach 203.0.113.7:9732: connection refused"]
mock = {"refuse": 0, "streams": 0, "degraded": 0}
MESSAGE_PARAMETERS = "kinds incoming initiator address host peer connection hash error from to".split()
LIST_PARAMETERS = "node limit cursor direction".split()
# As the recorder, which refuses others.
PARAMETERS = {
    "nodes": [], "health": [], "messages": LIST_PARAMETERS + MESSAGE_PARAMETERS, "logs": LIST_PARAMETERS + "levels query from to".split(),
    "connections": LIST_PARAMETERS + ["peer", "host"], "export.pcapng": LIST_PARAMETERS + MESSAGE_PARAMETERS, "stream": ["node", "messages", "logs", "levels", "query", *MESSAGE_PARAMETERS],
}


def total(node, share=1):
    first, rate = NODES[node]
    return int(first / share) + int(rate / share * (time.time_ns() - START) / SECOND)


def moment(node, number, share=1):
    first, rate = NODES[node]
    return START + int((number - int(first / share)) * SECOND * share / (rate or 4)) + 123_457


def message(node, number):
    connection = number // 50
    address, peer = PEERS[connection % 3]
    step = number % 50
    kind, content, plain = HANDSHAKE[step // 2] if step < 6 else EXAMPLES[(number * 7) % len(EXAMPLES)]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    error = "offset 37: the list ends in the middle of an element" if number % 41 == 7 else None
    found = re.search(r'"(B[0-9A-Za-z]{50}|o[0-9A-Za-z]{50})"', text)
    if node == "hostile":
        text, error, content = HOSTILE, HOSTILE if number % 3 == 0 else error, {HOSTILE: [HOSTILE, {"a": {"b": {"c": [1, 2, {"d": None}]}}}], "numbers": list(range(1000)), "__proto__": 1}
        plain = "00" * 300_000 if number % 2 else plain
    when = moment(node, number)
    return {"id": number, "time": str(when), "time_ms": when // 10**6, "connection": str(moment(node, connection * 50)), "peer_id": peer, "address": address,
            "initiator": "local" if connection % 2 else "remote", "incoming": bool(number % 2), "kind": kind, "category": CATEGORY.get(kind, "p2p"), "size": len(plain) // 2,
            "preview": text[:100] if node != "hostile" else text, "hash": found[1] if found else None, "error": error, "_content": content, "_plain": plain}


def log(node, number):
    when = moment(node, number, 3)
    text = HOSTILE if node == "hostile" else LINES[number % len(LINES)]
    return {"id": number, "time": str(when), "time_ms": when // 10**6, "level": LEVELS[number % len(LEVELS)], "section": ["validator.chain", "p2p.maintenance", ""][number % 3] if node != "hostile" else HOSTILE, "message": text}


def connections(node):
    made = []
    count = (total(node) + 49) // 50
    for number in range(max(0, count - 400), count):
        when = moment(node, number * 50)
        address, peer = PEERS[number % 3]
        remarks = []
        lost = 0
        if number % 7 == 3:
            lost = 65_537
            remarks = [{"time": str(when + SECOND), "text": f"incoming message lack chunks, at: 17 ({lost} bytes were not captured)"}, {"time": str(when + 2 * SECOND), "text": "incoming chunks go on with 19, 2 were lost"}]
        if number % 11 == 5:
            remarks.append({"time": str(when + SECOND), "text": "incoming chunk cannot decrypt, position: 21"})
            remarks.append({"time": str(when + SECOND), "text": "incoming chunks are undecryptable since chunk 21: the next chunk was not found after lost bytes"})
        state, reason = ("partly_decrypted", "next_chunk_not_found") if number % 11 == 5 else ("decrypted", None)
        ignored = None
        if number % 13 == 4:
            address, peer, ignored = *PEERS[3], "opened before the recorder, so that its nonces are not known; it is recorded from its next handshake on"
            state, reason = "unrecorded", "opened_before"
        version = {"chain_name": "TEZOS_MAINNET", "distributed_db_version": 2, "p2p_version": 1}
        first = {"port": 9732, "public_key": "2bfdda94", "version": version}
        both = lambda value: {"local": None, "remote": None} if ignored else {"local": value, "remote": value}
        if node == "hostile":
            remarks.append({"time": str(when), "text": HOSTILE})
            version["chain_name"] = HOSTILE
        made.append({"id": str(when), "address": address, "initiator": [None, "local", "remote"][0 if ignored else 1 + number % 2], "peer_id": peer,
                     "versions": both(first), "metadata": both({"disable_mempool": False, "private_node": False}), "acks": both("Ack"), "last": str(when + 9 * SECOND), "ended": None if number >= count - 3 else str(when + 9 * SECOND), "end": "open" if number >= count - 3 else "seen", "state": state, "reason": reason,
                     "bytes": {"sent": 12_345 + number, "received": 234_567 + number, "lost": lost, "gaps": int(lost > 0)}, "chunks": {"sent": 25, "received": 25}, "ignored": ignored, "remarks": remarks})
    return made


def losses(node):
    made = connections(node)
    lost = [item["bytes"]["lost"] for item in made if item["bytes"]["lost"]]
    of = lambda state: sum(item["state"] == state for item in made)
    return {"peers": len({item["peer_id"] for item in made if item["peer_id"]}),
            "losses": {"bytes": sum(lost), "gaps": len(lost), "connections": len(lost), "unrecorded": of("unrecorded"), "undecryptable": of("undecryptable"), "partly_decrypted": of("partly_decrypted")}}


def wanted_message(item, query):
    def has(name, *values):
        return not query.get(name) or query[name] in values

    host = re.sub(r"^\[(.*)\]$", r"\1", item["address"].rsplit(":", 1)[0])
    return (not query.get("kinds") or item["kind"] in query["kinds"].split(",")) and has("incoming", str(item["incoming"]).lower()) and has("initiator", item["initiator"]) \
        and has("address", item["address"]) and has("host", host) and has("peer", item["peer_id"]) and has("connection", item["connection"]) \
        and (item["hash"] or "").startswith(query.get("hash", "")) and has("error", str(item["error"] is not None).lower()) and in_time(item, query)


def in_time(item, query):
    return int(query.get("from", 0)) <= item["time_ms"] <= int(query.get("to", 10**15))


def wanted_log(item, query):
    levels = query.get("levels", "").lower()
    words = query.get("query", "").lower().split()
    return (not levels or item["level"].lower() in levels.split(",")) and (not words or any(word in item["message"].lower() for word in words)) and in_time(item, query)


def public(item):
    return {name: value for name, value in item.items() if not name.startswith("_")}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value):
        self.send(200, "application/json", json.dumps(value).encode())

    def refuse(self, status, why):
        self.send(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def do_POST(self):
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        mock["refuse"] = int(query.get("refuse", mock["refuse"]))
        mock["degraded"] = int(query.get("degraded", mock["degraded"]))
        mock["streams"] += 1 if "drop" in query else 0
        self.send(204, "text/plain", b"")

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if not url.path.startswith("/v4/"):
            return self.page(url.path)
        if mock["refuse"]:
            return self.refuse(mock["refuse"], "refused by the test")
        node = query.get("node", "usual")
        if node not in NODES:
            return self.refuse(404, f"no such node: {json.dumps(node)}")
        parts = url.path.split("/")[2:]
        unknown = [name for name in query if name not in PARAMETERS.get(parts[0], [])]
        if unknown:
            return self.refuse(400, f"unknown parameter: {unknown[0]}")
        if parts[0] not in ("nodes", "health") and "node" not in query:
            return self.refuse(404, "no such node: \"tezedge\"")
        if parts[0] == "connections" and len(parts) > 1:
            found = [item for item in connections(node) if item["id"] == parts[1]]
            return self.send_json(found[0]) if found else self.refuse(404, f"there is no connection {parts[1]}")
        if parts[0] == "messages" and len(parts) > 1:
            return self.message(node, int(parts[1]))
        answers = {"nodes": self.nodes, "messages": self.messages, "logs": self.logs, "connections": self.connections, "health": self.health, "stream": self.stream, "export.pcapng": self.export}
        return answers.get(parts[0], lambda *_: self.refuse(404, "no such path"))(node, query)

    def page(self, path):
        file = WEB / "index.html" if path == "/" else WEB / path.removeprefix("/assets/")
        if path != "/" and not path.startswith("/assets/") or not file.resolve().is_relative_to(WEB) or not file.is_file():
            return self.refuse(404, "no such file")
        return self.send(200, TYPES[file.suffix], file.read_bytes())

    def nodes(self, *_):
        first = lambda name: str(moment(name, 0)) if total(name) else None
        self.send_json({"next": None, "items": [{"name": name, "p2p_port": 9732 + index, "peer_id": None if name == "awaited" else "idso4JJr6ir2XYgwoF9aJNWi2pr5WW", "messages": total(name), "connections": (total(name) + 49) // 50, "logs": total(name, 3), **losses(name),
                         "first_time": first(name), "identity": "the file /data/identity.json does not exist yet" if name == "awaited" else "known"} for index, name in enumerate(NODES)]})

    def health(self, *_):
        capture = {"source": "sockets", "cgroups": ["/system.slice/node.service"], "lost_events": 0, "lost_bytes": 0, "dropped_events": 0, "dropped_bytes": 0, "unread_packets": 0, "skipped_events": 0, "missed_calls": 0, "open_connections": 3, "ignored_connections": 1, "given_up_connections": 0, "problems": []}
        node = {"identity": "known", "waiting": 0, "dropped": 0, "dropped_bytes": 0, "failed": 0, "errors": 0, "last_error": None, "damaged_files": [], "bytes": 123_456_789}
        nodes = [{**node, "name": name} for name in NODES]
        if mock["degraded"]:
            capture |= {"lost_events": 1234, "problems": ["cannot attach to \u202e/system.slice: EPERM"]}
            nodes[0] |= {"dropped": 7, "failed": 1, "damaged_files": ["/db/messages-3.sqlite"]}
        self.send_json({"status": "degraded" if mock["degraded"] else "ok", "version": "0", "capture": capture, "nodes": nodes})

    def list(self, query, count, make, wanted):
        limit = min(int(query.get("limit", 100)), 10_000)
        at = min(int(query.get("cursor", count - 1)), count - 1)
        items = []
        while at >= 0 and len(items) < limit:
            item = make(at)
            if wanted(item, query):
                items.append(public(item))
            at -= 1
        self.send_json({"items": items, "next": at if at >= 0 else None})

    def messages(self, node, query):
        self.list(query, total(node), lambda number: message(node, number), wanted_message)

    def logs(self, node, query):
        self.list(query, total(node, 3), lambda number: log(node, number), wanted_log)

    def message(self, node, number):
        if number >= total(node):
            return self.refuse(404, f"there is no message {number}")
        item = message(node, number)
        raw = "".join(f"{byte ^ 0x5a:02x}" for byte in bytes.fromhex(item["_plain"][:2_000_000]))
        return self.send_json({**public(item), "message": item["_content"], "plain": item["_plain"], "raw": raw, "cut": node == "hostile", "message_cut": False})

    def connections(self, node, query):
        items = connections(node)[::-1]
        if "cursor" in query:
            items = [item for item in items if int(item["id"]) <= int(query["cursor"])]
        if query.get("peer"):
            items = [item for item in items if item["peer_id"] == query["peer"]]
        limit = int(query.get("limit", 100))
        self.send_json({"items": items[:limit], "next": items[limit]["id"] if len(items) > limit else None})

    def export(self, node, _):
        self.send(200, "application/x-pcapng", b"\x0a\x0d\x0d\x0a" + node.encode())

    def stream(self, node, query):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        last = self.headers.get("Last-Event-ID", "")
        at, line = map(int, last.split("-")) if last else (total(node), total(node, 3))
        streams, turn = mock["streams"], 0
        self.wfile.write(f"id: {at}-{line}\n\n".encode())
        while streams == mock["streams"] and not mock["refuse"]:
            events = []
            while at < total(node):
                item = message(node, at)
                at += 1
                if query.get("messages") != "false" and wanted_message(item, query):
                    events.append(f"id: {at}-{line}\nevent: message\ndata: {json.dumps(public(item))}\n\n")
            while line < total(node, 3):
                item = log(node, line)
                line += 1
                if query.get("logs") == "true" and wanted_log(item, query):
                    events.append(f"id: {at}-{line}\nevent: log\ndata: {json.dumps(public(item))}\n\n")
            turn += 1
            if node == "lossy" and turn % 20 == 5:
                events.append(f"id: {at}-{line}\nevent: lost\ndata: {json.dumps({'messages': 1234, 'logs': 5})}\n\n")
            try:
                self.wfile.write("".join(events or [":\n\n"]).encode())
                self.wfile.flush()
            except OSError:
                break
            time.sleep(0.05)
        self.close_connection = True


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
