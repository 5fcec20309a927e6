"""Passes bytes between standard streams and a port on this machine, each after a pause: a line that is long. For
`ProxyCommand`: `python3 relay.py PORT SECONDS`."""

import os
import queue
import socket
import sys
import threading
import time

BLOCK = 65536


def late(read, write, pause: float) -> None:
    """Passes bytes on after a pause, in their order, until the end."""
    held: queue.Queue = queue.Queue()

    def passes() -> None:
        while True:
            due, block = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                write(block)
            except OSError:
                return
            if not block:
                return

    thread = threading.Thread(target=passes, daemon=True)
    thread.start()
    block = b"-"
    while block:
        try:
            block = read()
        except OSError:
            block = b""
        held.put((time.monotonic() + pause, block))
    thread.join()


def main() -> None:
    port, pause = int(sys.argv[1]), float(sys.argv[2])
    line = socket.create_connection(("127.0.0.1", port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def out(block: bytes) -> None:
        while block:
            block = block[os.write(1, block):]

    def into(block: bytes) -> None:
        if block:
            line.sendall(block)
        else:
            line.shutdown(socket.SHUT_WR)

    threading.Thread(target=late, args=(lambda: os.read(0, BLOCK), into, pause), daemon=True).start()
    late(lambda: line.recv(BLOCK), out, pause)


if __name__ == "__main__":
    main()
