#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Small HTTP requests, one after the other on one connection, every byte of each answer compared.

Usage: conversation.py ADDRESS PORT FOLDER SECONDS

FOLDER holds the files 0, 1, ... that the server offers as /small/N. Prints one line of JSON.
"""

import json
import os
import socket
import sys
import time


def load_answers(folder):
    answers = []
    for number in range(len(os.listdir(folder))):
        with open(os.path.join(folder, str(number)), "rb") as file:
            answers.append(file.read())
    return answers


def read_answer(stream):
    """The body of one answer."""
    status = stream.readline()
    if status.split()[1:2] != [b"200"]:
        raise ConnectionError(f"answered {status!r}")
    length = None
    while (line := stream.readline()) != b"\r\n":
        if not line:
            raise ConnectionError("closed within an answer")
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return stream.read(length)


def converse(address, port, answers, seconds):
    requests = [f"GET /small/{number} HTTP/1.1\r\nHost: culvert\r\n\r\n".encode()
                for number in range(len(answers))]
    count = wrong = 0
    with socket.create_connection((address, port), timeout=20) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = peer.makefile("rb")
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            number = count % len(answers)
            peer.sendall(requests[number])
            count += 1
            if read_answer(stream) != answers[number]:
                wrong += 1
        return {"requests": count, "wrong": wrong, "seconds": time.monotonic() - start}


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    address, port, folder, seconds = sys.argv[1:]
    print(json.dumps(converse(address, int(port), load_answers(folder), float(seconds))))


main()
