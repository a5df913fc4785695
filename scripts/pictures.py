#!/usr/bin/env python3
"""Takes the pictures of the guide: of the real page, with a Redis server under load, and of ./run-demo.

    sudo scripts/pictures.py [--no-demo] [MEMPROF]       (default target/release/memprof)
    sudo scripts/pictures.py --python [MEMPROF]          (only those of a Python program)
    sudo scripts/pictures.py --time [MEMPROF]            (only those of a recording)

Writes docs/page.png and docs/sandwich.png (1440 by 900 pixels, light), docs/phone.png (390 by 844) and
docs/demo.png, for which it builds a release; --no-demo leaves that one out. --python writes docs/python.png and
docs/python-top.png, for which it needs tmux. --time writes docs/time-line.png and docs/growth.png, of a minute and a half.
Needs root, redis-server with redis-benchmark, and Debian's chromium and chromium-driver. With pngquant
installed, the files are about a third as large.
"""
import base64
import html
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
REDIS, MEMPROF = 27017, 17839
PAGE = f"http://127.0.0.1:{MEMPROF}/"
WIDE, PHONE = (1440, 900), (390, 844)
# What Redis fills its memory with: [test, number of requests, bytes of a value].
LOAD = [("set", 150_000, 300), ("lpush", 150_000, 200), ("hset", 100_000, 200), ("zadd", 100_000, 50)]
# The newest report is shown.
PAINTED = "return performance.getEntriesByName('memprof-painted').length > 0"


class Browser:
    """A headless Chromium, controlled over WebDriver."""

    def __init__(self):
        command = ["chromedriver", "--port=0"]
        self.driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started = "started successfully on port "
        line = next(line for line in self.driver.stdout if started in line)
        self.at = f"http://127.0.0.1:{line.split(started)[1].strip().rstrip('.')}"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        options = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}}
        self.at += f"/session/{self.send('POST', '/session', options)['sessionId']}"

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def run(self, script):
        return self.send("POST", "/execute/sync", {"script": script, "args": []})

    def wait(self, script):
        end = time.monotonic() + 60
        while not self.run(script):
            if time.monotonic() > end:
                sys.exit(f"never true in the page: {script}")
            time.sleep(0.1)

    def native(self, command, parameters):
        self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, view, size):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.native("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "light"}]
        self.native("Emulation.setEmulatedMedia", {"features": scheme})
        self.send("POST", "/url", {"url": "about:blank"})
        self.send("POST", "/url", {"url": PAGE + view})
        self.wait(PAINTED)
        self.wait("return !!document.querySelector('#timeline canvas')")

    def take(self, name):
        # The view and the timeline are drawn in the next frames.
        time.sleep(1)
        path = ROOT / "docs" / name
        path.write_bytes(base64.b64decode(self.send("GET", "/screenshot")))
        if shutil.which("pngquant"):
            small = ["pngquant", "--force", "--skip-if-larger", "--strip", "--output", path, "128", path]
            subprocess.run(small, check=False)
        print(f"{path}: {path.stat().st_size:,} bytes")

    def end(self):
        self.send("DELETE", "")
        self.driver.terminate()
        self.driver.wait()


# What the Python program of the pictures does.
PROGRAM = '''
import csv, io, json, sys


class Table:
    def __init__(self, text):
        self.rows = [self.parse(row) for row in csv.DictReader(io.StringIO(text))]

    def parse(self, row):
        return {key: float(value) for key, value in row.items()}

    def by(self, key):
        return {n: sorted(self.rows, key=lambda row: row[key])[n::10] for n in range(10)}


def generate(count):
    return "a,b,c\\n" + "".join("%d,%d,%d\\n" % (n, n * 7 % 13, n * n) for n in range(count))


def main():
    table = Table(generate(60000))
    groups = table.by("b")
    kept = [json.loads(json.dumps(rows)) for rows in groups.values()]
    print(len(kept), flush=True)
    sys.stdin.read()


main()
'''

# Colours of the lines of ./run-demo: [what a line begins with, colour].
COLOURS = [("$ ", "#8ddb8c"), ("==> ", "#6cb6ff"), ("memprof: ", "#909dab")]


def demo(browser):
    """The output of ./run-demo as a terminal shows it."""
    # Without cargo's output, and with both streams in one, as on a terminal.
    subprocess.run(["cargo", "build", "--release", "--bin", "memprof", "--example", "light-node"], cwd=ROOT, check=True)
    command = f"set -o pipefail; {ROOT}/run-demo 2>&1 | grep -vE '^ +(Finished|Compiling)|^==> building'"
    text = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True).stdout
    # Paths as they are from the checkout.
    text = text.replace(f"{ROOT}/", "")
    lines = []
    for line in ["$ ./run-demo", *text.splitlines()]:
        # Names that are longer than the picture is wide.
        line = re.sub(r"\x1b\[[0-9;]*m", "", line)[:118]
        colour = next((colour for start, colour in COLOURS if line.startswith(start)), "inherit")
        lines.append(f'<span style="color:{colour}">{html.escape(line)}</span>')
    text_picture(browser, lines, "demo.png")


def text_picture(browser, lines, name):
    """Lines of HTML as a terminal shows them."""
    style = "margin:0;padding:16px;background:#151a21;color:#d5dbe2;font:13px/17px monospace;width:max-content"
    page = f'<body style="margin:0;background:#151a21"><pre style="{style}">' + "\n".join(lines)
    browser.send("POST", "/url", {"url": "data:text/html;charset=utf-8;base64," + base64.b64encode(page.encode()).decode()})
    width, height = browser.run("const r = document.querySelector('pre').getBoundingClientRect(); return [r.width, r.height]")
    metrics = {"width": round(width), "height": round(height), "deviceScaleFactor": 1, "mobile": False}
    browser.native("Emulation.setDeviceMetricsOverride", metrics)
    browser.take(name)


def load(test, requests, size):
    command = ["redis-benchmark", "-p", REDIS, "-t", test, "-n", requests, "-d", size, "-r", 100_000, "-P", 16, "-q"]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def wait_for(port):
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"nothing listens on port {port}: {error}")
            time.sleep(0.1)


def pictures(with_demo):
    for test in LOAD[:2]:
        load(*test)
        time.sleep(4)
    browser = Browser()
    try:
        browser.open("", WIDE)
        browser.run("document.getElementById('mark').click()")
        for test in LOAD[2:]:
            load(*test)
            time.sleep(4)
        # While nothing changes, the sum equals the kernel's figure.
        browser.open("#view=flame", WIDE)
        browser.wait("return document.getElementById('sum').dataset.verdict === 'equal'")
        browser.take("page.png")
        row = "[...document.querySelectorAll('.rows .row')].find((row) => row.textContent.includes('sdsnewlen'))"
        browser.open("#view=sandwich", WIDE)
        browser.wait(f"return {row} !== undefined")
        browser.run(f"{row}.click()")
        browser.wait("return document.querySelectorAll('canvas.flame').length === 2")
        browser.take("sandwich.png")
        browser.open("#view=flame", PHONE)
        browser.take("phone.png")
        if with_demo:
            demo(browser)
    finally:
        browser.end()


def top(file, memprof):
    """The lines that `memprof top` would show, of a saved profile."""
    tmux = ["tmux", "-L", "memprof-pictures"]
    command = [memprof, "open", "--top", file]
    subprocess.run([*tmux, "new-session", "-d", "-x", "110", "-y", "26", *map(str, command)], check=True)
    try:
        time.sleep(8)
        # The table of functions, which begins with Python's alone.
        subprocess.run([*tmux, "send-keys", "f"], check=True)
        time.sleep(2)
        text = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, check=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return [html.escape(line) for line in text.rstrip().splitlines()]


def python_pictures(memprof):
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory) / "app.py"
        program.write_text(PROGRAM)
        command = [memprof, "--listen", f"127.0.0.1:{MEMPROF}", "--stacks", "all", "--", "/usr/bin/python3", program]
        profiler = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        browser = Browser()
        try:
            profiler.stdout.readline()
            browser.open("#view=flame", WIDE)
            browser.take("python.png")
            saved = urllib.request.urlopen(PAGE + "v2/export/profile").read()
            file = pathlib.Path(directory) / "app.memprof.json"
            file.write_bytes(saved)
            text_picture(browser, top(file, memprof), "python-top.png")
        finally:
            browser.end()
            profiler.stdin.close()
            profiler.send_signal(signal.SIGINT)
            profiler.wait()


# What the recorded program of the pictures does: its cache fills, a report needs much for a moment, and sessions stay.
SERVICE = '''
import time

cache, sessions = {}, []


def look_up(key):
    return cache.setdefault(key % 20_000, str(key) * 100)


def remember(number):
    sessions.append([number] * 2_000)


def make_report():
    rows = [bytes(1_000) for _ in range(60_000)]
    time.sleep(6)
    return len(rows)


for second in range(90):
    for n in range(1_000):
        look_up(second * 1_000 + n)
    for n in range(20):
        remember(second * 20 + n)
    if second == 40:
        make_report()
    time.sleep(1)
'''


def time_pictures(memprof):
    with tempfile.TemporaryDirectory() as directory:
        program, file = pathlib.Path(directory) / "service.py", pathlib.Path(directory) / "service.memprof.db"
        program.write_text(SERVICE)
        command = [memprof, "record", file, "--stacks", "all", "--", "/usr/bin/python3", program]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        opened = subprocess.Popen([memprof, "open", file, "--listen", f"127.0.0.1:{MEMPROF}"])
        browser = Browser()
        try:
            wait_for(MEMPROF)
            times = json.load(urllib.request.urlopen(PAGE + "v2/series"))["times"]
            at = lambda seconds: min(times, key=lambda time: abs(time - times[0] - seconds * 1_000))
            # The page itself, not its state in the address, is what a drag leads to.
            browser.open(f"#view=diff&from=@{at(36)}&to=@{at(44)}", WIDE)
            browser.wait("return document.querySelectorAll('.diff-table .row').length > 2")
            browser.take("time-line.png")
            browser.open("#view=growth", WIDE)
            browser.wait("return document.querySelectorAll('#content .row').length > 2")
            browser.take("growth.png")
        finally:
            browser.end()
            opened.send_signal(signal.SIGINT)
            opened.wait()


def main():
    arguments = sys.argv[1:]
    if "--time" in arguments:
        arguments.remove("--time")
        return time_pictures(arguments[0] if arguments else ROOT / "target/release/memprof")
    if "--python" in arguments:
        arguments.remove("--python")
        return python_pictures(arguments[0] if arguments else ROOT / "target/release/memprof")
    with_demo = "--no-demo" not in arguments
    memprof = next((argument for argument in arguments if argument != "--no-demo"), ROOT / "target/release/memprof")
    command = [memprof, "--listen", f"127.0.0.1:{MEMPROF}", "--", "redis-server", "--port", str(REDIS), "--save", ""]
    profiler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(REDIS)
        wait_for(MEMPROF)
        pictures(with_demo)
    finally:
        profiler.send_signal(signal.SIGINT)
        profiler.wait()


main()
