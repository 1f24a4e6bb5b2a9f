# SPDX-License-Identifier: BSD-2-Clause
"""culvert in the lab between programs that know nothing of it, on each engine.

    curl, iperf3, haproxy  -->  culvert  -->  nginx, iperf3, haproxy
    client namespace            relay         server

Received bytes are compared with those sent (sha256). PROXY headers are sent to haproxy and nginx, and
come from curl and haproxy. After each engine nothing may be left in the daemon.
"""

import json
import os
import shutil
import subprocess

import pytest
from labkit import (HTTP_PORT, IPERF_PORT, NGINX_PATHS, RELAY, SERVER, SMALL_FILES, TOP, Daemon,
                    LabError, expect, flow_of, sha256_of_file, tail, wait_until)

pytestmark = pytest.mark.needs("ip", "curl", "iperf3", "nginx", "haproxy",
                               packages="demo", ipv6=True)
HTTP, IPERF = 9000, 9001  # where culvert listens

HAPROXY_DEFAULTS = """
defaults
    mode {mode}
    timeout connect 5s
    timeout client 60s
    timeout server 60s
"""
# Servers that answer with four words of the PROXY header: addresses and ports of both ends.
TOLD_HAPROXY_CONF = HAPROXY_DEFAULTS.format(mode="http") + """
frontend told
    bind {server}:{port} accept-proxy
    bind [fd00:2::2]:{port} accept-proxy
    http-request return status 200 content-type text/plain \
lf-string "%[src] %[src_port] %[dst] %[dst_port]\\n"
"""

TOLD_NGINX_CONF = """
daemon off;
pid {home}/told.pid;
error_log {home}/told.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
""" + NGINX_PATHS + """
    server {{
        listen {server}:{port} proxy_protocol;
        location / {{
            default_type text/plain;
            return 200 "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr \
$proxy_protocol_server_port\\n";
        }}
    }}
}}
"""

# In the client's namespace, before culvert.
SENDER_CONF = HAPROXY_DEFAULTS.format(mode="tcp") + """
listen v1
    bind 127.0.0.1:{v1}
    server culvert {relay}:{haproxy} send-proxy
listen v2
    bind 127.0.0.1:{v2}
    server culvert {relay}:{nginx} send-proxy-v2 proxy-v2-options crc32c,unique-id
listen files
    bind 127.0.0.1:{files}
    server culvert {relay}:{stripped} send-proxy-v2
"""

TOLD_HAPROXY_PORT = 8081
TOLD_NGINX_PORT = 8082
SENDER_V1, SENDER_V2, SENDER_FILES = 8091, 8092, 8093

# name, port of culvert, where it leads to, what it does with headers
TELLING = (
    ("haproxy1", 9010, f"{SERVER}:{TOLD_HAPROXY_PORT}", "send-v1"),
    ("haproxy2", 9011, f"{SERVER}:{TOLD_HAPROXY_PORT}", "send-v2"),
    ("nginx1", 9012, f"{SERVER}:{TOLD_NGINX_PORT}", "send-v1"),
    ("nginx2", 9013, f"{SERVER}:{TOLD_NGINX_PORT}", "send-v2"),
    ("on1", 9014, f"{SERVER}:{TOLD_HAPROXY_PORT}", "receive, send-v1"),
    ("on2", 9015, f"{SERVER}:{TOLD_NGINX_PORT}", "receive, send-v2"),
    ("stripped", 9016, f"{SERVER}:{HTTP_PORT}", "receive"),
)

CONVERSATION = os.path.join(TOP, "scripts/lib/conversation.py")


class Site:
    """The lab with its servers, the same for all engines."""

    def __init__(self, lab, size):
        self.lab = lab
        self.big = lab.path("www/big")
        self.digest = lab.start_nginx(size)
        lab.start_iperf3()
        ports = {name: port for name, port, _, _ in TELLING}
        for name, text, values in (
                ("told-haproxy", TOLD_HAPROXY_CONF, {"port": TOLD_HAPROXY_PORT}),
                ("told-nginx", TOLD_NGINX_CONF, {"port": TOLD_NGINX_PORT}),
                ("sender", SENDER_CONF, {"v1": SENDER_V1, "v2": SENDER_V2, "files": SENDER_FILES,
                                         "haproxy": ports["on1"], "nginx": ports["on2"],
                                         "stripped": ports["stripped"]})):
            lab.write(f"{name}.conf", text.format(home=lab.home, server=SERVER, relay=RELAY, **values))
        lab.start_server("server", TOLD_HAPROXY_PORT, "haproxy", "-db", "-f",
                         lab.path("told-haproxy.conf"))
        lab.start_server("server", TOLD_NGINX_PORT, "nginx", "-p", lab.home, "-e",
                         lab.path("told.log"), "-c", lab.path("told-nginx.conf"))
        lab.start_server("client", SENDER_FILES, "haproxy", "-db", "-f", lab.path("sender.conf"))
        lab.write("telling.conf", "".join(
            f"[forward {name}]\nlisten = {RELAY}:{port}\nupstream = {upstream}\nproxy-protocol = {use}\n"
            for name, port, upstream, use in TELLING))


class Trial:
    """One engine."""

    def __init__(self, site, program, engine):
        self.site = site
        self.lab = site.lab
        self.engine = engine
        self.folder = self.lab.path(f"{engine}.out")
        os.mkdir(self.folder)
        self.daemon = Daemon(self.lab, program, engine, [
            (f"{RELAY}:{HTTP}", f"{SERVER}:{HTTP_PORT}"),
            (f"{RELAY}:{IPERF}", f"{SERVER}:{IPERF_PORT}")], "--config", self.lab.path("telling.conf"))

    def check_download(self, address):
        digest, size = self.lab.download(f"http://{address}/big")
        expect(digest == self.site.digest, f"{size} bytes came, with another sha256")

    def watched(self, begin, check):
        """BEGIN a client for so many seconds, of which CHECK sees what it must before they end.

        The first time is enough on a machine that is not busy with other things.
        """
        for seconds in (2, 15):
            client = begin(seconds)
            try:
                check(0.8 * seconds)
                return client
            except LabError as error:
                failure = error
                self.lab.stop(client)
                if client.stdout:
                    client.stdout.close()
        raise failure

    def expect_carriers(self, port, wanted, seconds):
        """The busiest session on PORT must come to WANTED, a carrier per direction."""
        seen = {}

        def has_come():
            session = self.daemon.busiest_session(port)
            if session:
                seen.update({flow["direction"]: flow["carrier"] for flow in session["flows"]})
            return wanted.items() <= seen.items()

        wait_until(has_come, lambda: f"carriers are {seen} instead of {wanted}", seconds)

    def expect_kernel_bytes(self, port, seconds):
        """The kernel must have carried some of what the busiest session on PORT sends.

        A bulk flow of --engine sockmap leaves the kernel whenever its target is slower than its
        source, so at any one moment it may well be elsewhere.
        """
        def is_some():
            session = self.daemon.busiest_session(port)
            return session and flow_of(session, "client-to-upstream")["kernel_bytes"]

        wait_until(is_some, "bytes carried by the kernel", seconds)

    def run_client(self, *command):
        self.lab.finish(self.lab.start("client", *command), 60)

    def check_told(self, url, *options):
        """What the far end takes for its client, and for itself, must be curl's two addresses."""
        curl = self.lab.start(
            "client", "curl", "--silent", "--show-error", "--fail", "--max-time", "20",
            "--write-out", "%{local_ip} %{local_port} %{remote_ip} %{remote_port}\\n", *options,
            url, stdout=subprocess.PIPE, text=True)
        with curl.stdout:
            told, own = (curl.stdout.read().splitlines() + ["", ""])[:2]
        self.lab.finish(curl, 20)
        expect(own and told == own, f"curl is {own!r}, and was taken for {told!r}")


@pytest.fixture(scope="module")
def site(lab, request):
    return Site(lab, (request.config.option.size or 64) << 20)


@pytest.fixture(scope="module")
def trial(site, culvert, engine):
    one = Trial(site, culvert, engine)
    yield one
    # A case that failed to end it must not disturb the next engine.
    one.daemon.stop()
    shutil.rmtree(one.folder)


def test_iperf3(trial):
    wanted = {"client-to-upstream": "graft" if trial.engine == "auto" else trial.engine}
    client = trial.watched(
        lambda seconds: trial.lab.start_iperf3_client(RELAY, IPERF, seconds),
        lambda seconds: trial.expect_kernel_bytes(IPERF, seconds) if trial.engine == "sockmap" else
        trial.expect_carriers(IPERF, wanted, seconds))
    received = trial.lab.finish_iperf3_client(client, 30)["sum_received"]
    expect(received["bytes"] > 1 << 20, f"iperf3: {received}")


def test_upload(trial):
    url = f"http://{RELAY}:{HTTP}/upload/{trial.engine}"
    trial.run_client("curl", "--silent", "--show-error", "--fail", "--upload-file",
                     trial.site.big, url)
    uploaded = trial.lab.path(f"www/upload/{trial.engine}")
    expect(sha256_of_file(uploaded) == trial.site.digest, "the upload has another sha256")


def test_parallel_downloads(trial):
    url = f"http://{RELAY}:{HTTP}/"
    trial.run_client("curl", "--silent", "--show-error", "--fail", "--parallel",
                     f"{url}big?[0-3]", "--output", os.path.join(trial.folder, "big-#1"),
                     f"{url}small/[0-{SMALL_FILES - 1}]", "--output",
                     os.path.join(trial.folder, "small-#1"))
    for number in range(4):
        digest = sha256_of_file(os.path.join(trial.folder, f"big-{number}"))
        expect(digest == trial.site.digest, f"download {number} has another sha256")
    for number in range(SMALL_FILES):
        with open(os.path.join(trial.folder, f"small-{number}"), "rb") as received, \
             open(trial.lab.path(f"www/small/{number}"), "rb") as original:
            expect(received.read() == original.read(), f"small file {number} differs")


def test_conversation(trial):
    carrier = "graft" if trial.engine == "auto" else trial.engine
    wanted = {"client-to-upstream": carrier, "upstream-to-client": carrier}
    client = trial.watched(
        lambda seconds: trial.lab.start("client", CONVERSATION, RELAY, str(HTTP),
                                        trial.lab.path("www/small"), str(seconds),
                                        stdout=subprocess.PIPE),
        lambda seconds: trial.expect_carriers(HTTP, wanted, seconds))
    with client.stdout:
        output = client.stdout.read()
    trial.lab.finish(client, 20)
    report = json.loads(output)
    expect(report["wrong"] == 0, f"{report['wrong']} wrong answers")
    expect(report["requests"] > 1000, f"only {report['requests']} requests")


def test_told(trial):
    """To programs, of culvert; and of curl and haproxy, by culvert."""
    for _, port, _, use in TELLING:
        if "send" in use:
            trial.check_told(f"http://{RELAY}:{port}/",
                             *["--haproxy-protocol"] if "receive" in use else [])
    for port in SENDER_V1, SENDER_V2:
        trial.check_told(f"http://127.0.0.1:{port}/")


def test_download_behind_haproxy(trial):
    trial.check_download(f"127.0.0.1:{SENDER_FILES}")


def test_nothing_is_left(trial):
    """Nothing may be left; and the daemon ends when told to."""
    resources = {}

    def is_idle():
        resources.update(trial.daemon.ask("status")["resources"])
        return (resources["sessions"] == resources["slots_used"] == resources["buffers"] == 0
                and resources["pipes"] == resources["pipes_idle"])

    wait_until(is_idle, lambda: f"the daemon to be idle again: {resources}")
    code = trial.daemon.stop()
    expect(code == 0, f"culvert ended with {code}:\n{tail(trial.daemon.process.log)}")
