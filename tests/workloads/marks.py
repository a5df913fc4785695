"""mark() prints one line of JSON: the interpreter's own frames of its callers, innermost first, each with its name (qualified
from Python 3.11 on), file and line; and which size of memory it then allocates, and keeps."""

import json
import sys
import threading

kept = []
lock = threading.Lock()


def mark():
    frames = []
    frame = sys._getframe(1)
    while frame:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append([name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    with lock:
        size = (len(kept) + 40) << 16
        kept.append(bytearray(size))
        print(json.dumps({"frames": frames, "size": size}), flush=True)
