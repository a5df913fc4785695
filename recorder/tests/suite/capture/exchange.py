"""Sends and receives random bytes over a TCP connection, in a chosen way; prints how many and their SHA-256.

    exchange.py listen|connect ADDRESS PORT METHOD BYTES

A line on standard output is the port at which it listens, or the one that it connects from. With the method `hold`, it exchanges
five bytes, says so, and waits for a line on standard input. The last line is: bytes sent, their SHA-256, bytes received, their SHA-256.
"""

import ctypes
import hashlib
import mmap
import os
import socket
import struct
import sys
import tempfile
import threading

role, address, port, method, size = sys.argv[1:]
size = int(size)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
part = 1 << 14


class Ring:
    """io_uring with one operation at a time, by the system calls themselves."""

    SEND, RECV = 26, 27
    SETUP, ENTER, GETEVENTS = 425, 426, 1

    def __init__(self):
        self.call = ctypes.CDLL(None, use_errno=True).syscall
        params = ctypes.create_string_buffer(120)
        self.fd = self.call(self.SETUP, 1, params)
        if self.fd < 0:
            sys.exit(f"io_uring: {os.strerror(ctypes.get_errno())}")
        words = struct.unpack("30I", params)
        submit, complete = words[10:20], words[20:30]
        self.submit = mmap.mmap(self.fd, submit[6] + 4 * words[0])
        self.complete = mmap.mmap(self.fd, complete[5] + 16 * words[1], offset=0x8000000)
        self.entries = mmap.mmap(self.fd, 64 * words[0], offset=0x10000000)
        self.tail, self.array = submit[1], submit[6]
        self.head, self.mask, self.results = complete[0], complete[2], complete[5]

    def run(self, operation, fd, buffer):
        address = ctypes.addressof(buffer)
        struct.pack_into("BBHiQQIIQ24x", self.entries, 0, operation, 0, 0, fd, 0, address, len(buffer), 0, 0)
        struct.pack_into("I", self.submit, self.array, 0)
        (tail,) = struct.unpack_from("I", self.submit, self.tail)
        struct.pack_into("I", self.submit, self.tail, tail + 1)
        self.call(self.ENTER, self.fd, 1, 1, self.GETEVENTS, None, 0)
        head, mask = (struct.unpack_from("I", self.complete, at)[0] for at in (self.head, self.mask))
        (result,) = struct.unpack_from("i", self.complete, self.results + 16 * (head & mask) + 8)
        struct.pack_into("I", self.complete, self.head, head + 1)
        if result < 0:
            sys.exit(f"io_uring: {os.strerror(-result)}")
        return result

    def send(self, fd, data):
        return self.run(self.SEND, fd, (ctypes.c_char * len(data)).from_buffer_copy(data))

    def receive(self, fd):
        buffer = (ctypes.c_char * part)()
        length = self.run(self.RECV, fd, buffer)
        return buffer.raw[:length]


class Messages:
    """sendmmsg and recvmmsg, with two messages of two parts each."""

    def __init__(self, fd):
        self.fd = fd
        self.library = ctypes.CDLL(None, use_errno=True)

    def prepare(self, buffers):
        """An array of struct mmsghdr, each with a pair of buffers, and the vectors that it points to."""
        vectors = (ctypes.c_uint64 * (4 * len(buffers)))()
        messages = (ctypes.c_uint64 * (8 * len(buffers)))()
        for n, pair in enumerate(buffers):
            for i, buffer in enumerate(pair):
                vectors[4 * n + 2 * i] = ctypes.addressof(buffer)
                vectors[4 * n + 2 * i + 1] = len(buffer)
            messages[8 * n + 2] = ctypes.addressof(vectors) + 32 * n
            messages[8 * n + 3] = 2
        return messages, vectors

    def lengths(self, messages, count):
        if count < 0:
            sys.exit(os.strerror(ctypes.get_errno()))
        return [messages[8 * n + 7] & 0xFFFFFFFF for n in range(count)]

    def send(self, data):
        copy = lambda data: (ctypes.c_char * len(data)).from_buffer_copy(data)
        half = len(data) // 2
        pairs = [[copy(half[:3]), copy(half[3:])] for half in (data[:half], data[half:]) if len(half) > 3]
        if len(pairs) < 2:
            return os.write(self.fd, data)
        messages, vectors = self.prepare(pairs)
        return sum(self.lengths(messages, self.library.sendmmsg(self.fd, messages, len(pairs), 0)))

    def receive(self):
        pairs = [[(ctypes.c_char * 5)(), (ctypes.c_char * part)()] for _ in range(2)]
        messages, vectors = self.prepare(pairs)
        # Waits for the first message only.
        count = self.library.recvmmsg(self.fd, messages, 2, 0x10000, None)
        joined = ((a.raw + b.raw)[:n] for n, (a, b) in zip(self.lengths(messages, count), pairs))
        return b"".join(joined)


def parts(data):
    """Pieces of many sizes."""
    at = 0
    for n in (1, 250, 16384, 3, 70000, 1460) * (len(data) // 80000 + 2):
        if at < len(data):
            yield data[at : at + n]
            at += n
    if at < len(data):
        yield data[at:]


def send_all(data, send):
    while data:
        data = data[send(data) :]


def send(sock, data):
    fd = sock.fileno()
    if method == "sendfile":
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            at = 0
            while at < len(data):
                at += os.sendfile(fd, file.fileno(), at, len(data) - at)
        return
    if method == "splice":
        out, into = os.pipe()
        for piece in parts(data):
            for at in range(0, len(piece), 4096):
                bit = piece[at : at + 4096]
                os.write(into, bit)
                left = len(bit)
                while left:
                    left -= os.splice(out, fd, left)
        return
    ring = Ring() if method == "uring" else None
    how = {
        "many": lambda piece: Messages(fd).send(piece),
        "uring": lambda piece: ring.send(fd, piece),
        "read": lambda piece: os.write(fd, piece),
        "vectors": lambda piece: os.writev(fd, [piece[:7], piece[7:100], b"", piece[100:]]),
        "messages": lambda piece: sock.sendmsg([piece[:7], piece[7:100], b"", piece[100:]]),
    }.get(method, sock.send)
    for piece in parts(data):
        send_all(piece, how)


def receive(sock, tell):
    fd = sock.fileno()
    out, into = os.pipe()

    def vectors():
        buffers = [bytearray(5), bytearray(100), bytearray(part)]
        n = os.readv(fd, buffers)
        return b"".join(buffers)[:n]

    def messages():
        buffers = [bytearray(5), bytearray(100), bytearray(part)]
        n = sock.recvmsg_into(buffers)[0]
        return b"".join(buffers)[:n]

    def peek():
        sock.recv(part, socket.MSG_PEEK)
        return sock.recv(part // 2)

    def splice():
        n = os.splice(fd, into, 4096)
        return os.read(out, n)

    ring = Ring() if method == "uring" else None
    how = {
        "many": Messages(fd).receive,
        "uring": lambda: ring.receive(fd),
        "read": lambda: os.read(fd, part),
        "vectors": vectors,
        "messages": messages,
        "peek": peek,
        "splice": splice,
    }.get(method, lambda: sock.recv(part))
    while data := how():
        tell(data)


def exchange(sock):
    data = os.urandom(size)
    received = hashlib.sha256()
    count = 0

    def tell(data):
        nonlocal count
        received.update(data)
        count += len(data)

    def send_and_end():
        send(sock, data)
        sock.shutdown(socket.SHUT_WR)

    if method == "dup":
        sock = socket.socket(fileno=os.dup(sock.detach()))
    if method == "fork":
        child = os.fork()
        if child == 0:
            send_and_end()
            os._exit(0)
        receive(sock, tell)
        os.waitpid(child, 0)
    else:
        sender = threading.Thread(target=send_and_end)
        sender.start()
        receive(sock, tell)
        sender.join()
    print(size, hashlib.sha256(data).hexdigest(), count, received.hexdigest(), flush=True)


if role == "listen":
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if method == "early":
        # The socket is made when data comes, not at the end of the handshake.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
    server.bind((address, int(port)))
    server.listen(5)
    print(server.getsockname()[1], flush=True)
    sock, _ = server.accept()
else:
    sock = socket.socket(family)
    if method == "refused":
        sys.exit(print(sock.connect_ex((address, int(port)))))
    sock.connect((address, int(port)))
    print(sock.getsockname()[1], flush=True)
if method == "hold":
    # An exchange before the real one.
    sock.sendall(b"hello")
    sock.recv(5, socket.MSG_WAITALL)
    print("held", flush=True)
    sys.stdin.readline()
exchange(sock)
