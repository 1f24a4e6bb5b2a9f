#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""How streams end through other forwarders: what docs/comparison.md says of half-closes and resets.

Prints for each that is installed whether a half-close is kept (the client sends FIN, the server
answers two seconds later), and what one end sees when the other resets an idle connection.

usage: other_relays.py        (as root; in a network namespace of its own)
"""

import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

LISTEN, UPSTREAM = ("127.0.0.1", 9000), ("127.0.0.1", 9100)
PATIENCE = 5
PAUSE = 2
PROXYD = "/lib/systemd/systemd-socket-proxyd"
ABORT = struct.pack("ii", 1, 0)

RINETD = "{listen[0]} {listen[1]} {upstream[0]} {upstream[1]}\npidlogfile {folder}/pid\n"
HAPROXY = """defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen all
    bind {listen[0]}:{listen[1]}
    server one {upstream[0]}:{upstream[1]}
"""
NGINX = """load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;
events {{}}
stream {{
    server {{
        listen {listen[0]}:{listen[1]}; proxy_pass {upstream[0]}:{upstream[1]}; {extra}
    }}
}}
"""


def relays(folder):
    """(name, command), the configuration files written."""
    def write(name, text, extra=""):
        path = pathlib.Path(folder) / name
        path.write_text(text.format(listen=LISTEN, upstream=UPSTREAM, folder=folder, extra=extra),
                        encoding="utf-8")
        return str(path)

    to, here = "%s:%d" % UPSTREAM, "%s:%d" % LISTEN
    socat = [f"TCP-LISTEN:{LISTEN[1]},fork,reuseaddr,bind={LISTEN[0]}", f"TCP:{to}"]
    return [
        ("rinetd", ["rinetd", "-f", "-c", write("rinetd", RINETD)]),
        ("redir", ["redir", "-n", here, to]),
        ("haproxy", ["haproxy", "-db", "-f", write("haproxy", HAPROXY)]),
        ("nginx", ["nginx", "-c", write("nginx", NGINX)]),
        ("nginx, proxy_half_close on",
         ["nginx", "-c", write("nginx-half", NGINX, "proxy_half_close on;")]),
        ("systemd-socket-proxyd", ["systemd-socket-activate", "-l", here, PROXYD, to]),
        ("socat", ["socat", *socat]),
        ("socat -t 30", ["socat", "-t", "30", *socat]),
    ]


def pair(upstream):
    """Both ends of a session, after a byte each way."""
    client = socket.create_connection(LISTEN, PATIENCE)
    server, _ = upstream.accept()
    server.settimeout(PATIENCE)
    for one, other in ((client, server), (server, client)):
        one.sendall(b"x")
        other.recv(1)
    return client, server


def half_close(upstream):
    client, server = pair(upstream)
    with client, server:
        client.shutdown(socket.SHUT_WR)
        try:
            if server.recv(1):
                return "no"
            time.sleep(PAUSE)
            server.sendall(b"y")
            return "yes" if client.recv(1) == b"y" else "no"
        except OSError:
            return "no"


def reset(upstream, by_client):
    ends = pair(upstream)
    first, other = ends if by_client else reversed(ends)
    with other:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        first.close()
        try:
            return "data" if other.recv(1) else "FIN"
        except ConnectionResetError:
            return "RST"


def wait_until_listening():
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(LISTEN, PATIENCE).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def forget_first(upstream):
    """The connection that wait_until_listening() has caused."""
    try:
        upstream.accept()[0].close()
    except TimeoutError:
        pass


def show(name, command):
    with socket.create_server(UPSTREAM) as upstream:
        upstream.settimeout(1)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_listening()
            forget_first(upstream)
            upstream.settimeout(PATIENCE)
            print(f"{name:28} half-close kept: {half_close(upstream):3}   "
                  f"client's reset: {reset(upstream, True)}   "
                  f"server's reset: {reset(upstream, False)}", flush=True)
        finally:
            process.terminate()
            process.wait()


def main():
    if "OTHER_RELAYS_NETNS" not in os.environ:
        os.environ["OTHER_RELAYS_NETNS"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, "-B", __file__])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="other-relays.") as folder:
        os.chmod(folder, 0o755)
        for name, command in relays(folder):
            if shutil.which(command[0]):
                show(name, command)
            else:
                print(f"{name:28} not installed")


if __name__ == "__main__":
    main()
