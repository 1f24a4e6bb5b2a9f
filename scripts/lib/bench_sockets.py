#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Opens pairs of connected TCP sockets over loopback, and does nothing with them.

Usage: bench_sockets.py PAIRS

Obeys the lines "open" and "close" on stdin, answers each with the same when it is done, and ends
with stdin. What plain sockets cost is subtracted to see what a relay needs beyond its own.
"""

import re
import socket
import sys


def open_pairs(listener, pairs):
    for index in range(len(pairs)):
        client = socket.create_connection(listener.getsockname())
        server, _address = listener.accept()
        pairs[index] = (client, server)


def close_pairs(pairs):
    for index, (client, server) in enumerate(pairs):
        client.close()
        server.close()
        pairs[index] = None


def main():
    if len(sys.argv) != 2 or not re.fullmatch(r"[1-9]\d{0,6}", sys.argv[1]):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    pairs = [None] * int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for line in sys.stdin:
            if line == "open\n":
                open_pairs(listener, pairs)
            else:
                close_pairs(pairs)
            print(line, end="", flush=True)


main()
