"""Sends and receives random bytes over a TCP connection, in a chosen way; prints how many and their SHA-256.

    exchange.py listen|connect ADDRESS PORT METHOD BYTES

A line on standard output is the port at which it listens, or the one that it connects from. It begins to exchange when a line
comes on standard input. The last line is: bytes sent, their SHA-256, bytes received, their SHA-256.
"""

import hashlib
import os
import socket
import sys
import tempfile
import threading

role, address, port, method, size = sys.argv[1:]
size = int(size)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
part = 1 << 14


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
    how = {
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

    how = {
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
        if method != "hold":
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
    if method == "hold":
        # An exchange before the real one.
        sock.sendall(b"hello")
        sock.recv(5, socket.MSG_WAITALL)
        print("held", flush=True)
else:
    sock = socket.socket(family)
    sock.connect((address, int(port)))
    print(sock.getsockname()[1], flush=True)
    if method == "hold":
        sock.sendall(b"world")
        sock.recv(5, socket.MSG_WAITALL)
    sys.stdin.readline() if method == "hold" else None
exchange(sock)
