"""Compares what a recorder serves of a node with what pseudo nodes wrote down.

    compare.py URL NODE LOG…

The logs are those of one pseudo node, in the order of its starts. Waits up to 30 s until the recorder has stored as many messages, and
then demands the same connections, and in each direction of each the same messages with the same bytes in the same order.
"""

import hashlib
import json
import sys
import time
import urllib.request

PATIENCE = 30
MOST = 10_000

url, node, logs = sys.argv[1], sys.argv[2], sys.argv[3:]


def ask(path):
    return json.load(urllib.request.urlopen(url + path, timeout=10))


def written(log):
    """The connections of a log: peer's address, messages sent, messages received."""
    connections, current = [], {}
    for line in map(json.loads, open(log)):
        key = line["local"], line["remote"]
        if line["event"] == "opened":
            current[key] = line["remote"], [], []
            connections.append(current[key])
        elif line["event"] == "message":
            side = 1 + (line["direction"] == "received")
            current[key][side].append((line["kind"], line["size"], line["sha256"]))
    return [connection for connection in connections if any(connection[1:])]


def recorded():
    """The same of the recorder."""
    connections = {}
    listed = ask(f"/v4/messages?node={node}&direction=forward&limit={MOST}")["items"]
    for item in listed:
        details = ask(f"/v4/messages/{item['id']}?node={node}")
        assert not details["cut"] and details["raw"], details
        plain = bytes.fromhex(details["plain"])
        connection = connections.setdefault(item["connection"], (item["address"], [], []))
        connection[1 + item["incoming"]].append((item["kind"], item["size"], hashlib.sha256(plain).hexdigest()))
    return list(connections.values())


expected = [connection for log in logs for connection in written(log)]
number = sum(len(sent) + len(received) for _, sent, received in expected)
assert 0 < number <= MOST, f"{number} messages in {logs}"
end = time.monotonic() + PATIENCE
while time.monotonic() < end:
    state = next(item for item in ask("/v4/nodes")["items"] if item["name"] == node)
    if state["messages"] >= number:
        break
    time.sleep(0.1)
found = recorded()
have = sum(len(sent) + len(received) for _, sent, received in found)
assert have == number, f"{node}: {have} messages recorded, {number} sent and received"
# Those of one peer's address may be opened at once.
for ours, theirs in zip(sorted(found), sorted(expected), strict=True):
    assert ours == theirs, f"{node}: recorded {str(ours)[:1000]}, not {str(theirs)[:1000]}"
for connection in ask(f"/v4/connections?node={node}&limit={MOST}")["items"]:
    assert connection["bytes"]["lost"] == 0 and not connection["ignored"], connection
print(f"{node}: all {number} messages of {len(expected)} connections are recorded")
