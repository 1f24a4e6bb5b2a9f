# SPDX-License-Identifier: BSD-2-Clause
"""The traffic of a soak run: real programs and verifying peers, all at once, for a cycle.

A program that a fault has killed on purpose may fail, and others only where the fault explains it.
No byte may ever be received wrong.
"""

import json
import os
import random
import signal
import subprocess
import threading
import time

from labkit import (HTTP_PORT, IPERF_PORT, RELAY, SERVER, SMALL_FILES, LabError, sha256_of_file,
                    sha256_of_stream, tail, wait_until)

from soak_samples import ask

HAPROXY_PORT, DIGEST_PORT, SINK_PORT, PEER_PORT = 8080, 7000, 7100, 9110
# culvert's ports for each of them
HTTP, IPERF, HAPROXY, DIGEST, SINK, PEER = range(9000, 9006)

HAPROXY_CONF = """
defaults
    mode tcp
    timeout connect 10s
    timeout client 120s
    timeout server 120s
listen soak
    bind {server}:{port}
    server nginx {server}:{http}
"""

BIG_SIZE = 16 << 20
# Longer than any fault lasts, with the retransmissions after it
PATIENCE = 60


def forwards():
    return ((f"{RELAY}:{HTTP}", f"{SERVER}:{HTTP_PORT}"),
            (f"{RELAY}:{IPERF}", f"{SERVER}:{IPERF_PORT}"),
            (f"{RELAY}:{HAPROXY}", f"{SERVER}:{HAPROXY_PORT}"),
            (f"{RELAY}:{DIGEST}", f"{SERVER}:{DIGEST_PORT}"),
            (f"{RELAY}:{SINK}", f"{SERVER}:{SINK_PORT}"),
            (f"127.0.0.1:{PEER}", f"127.0.0.1:{PEER_PORT}"))


class Site:
    """The servers of the whole run. Servers that a fault has killed are started anew."""

    def __init__(self, lab, programs):
        self.lab = lab
        self.bench = os.path.abspath(os.path.join(programs, "culvert-bench"))
        self.peer = os.path.abspath(os.path.join(programs, "tests/flow/test_torture"))
        self.big_digest = lab.start_nginx(BIG_SIZE)
        self.small_digests = [sha256_of_file(lab.path(f"www/small/{number}"))
                              for number in range(SMALL_FILES)]
        with open(lab.path("haproxy.conf"), "w", encoding="ascii") as file:
            file.write(HAPROXY_CONF.format(server=SERVER, port=HAPROXY_PORT, http=HTTP_PORT))
        lab.start_server("server", HAPROXY_PORT, "haproxy", "-db", "-f",
                         lab.path("haproxy.conf"))
        with open(lab.path("sink.json"), "wb") as output:
            self.sink = lab.start_server("server", SINK_PORT, self.bench, "sink", "--listen",
                                         f"{SERVER}:{SINK_PORT}", stdout=output)
        self.mortal = {}
        self.start_mortal()

    def start_mortal(self):
        """Upstreams that a fault may kill with SIGKILL; starts those that are not there."""
        commands = {
            IPERF_PORT: ("iperf3", "--server", "--port", str(IPERF_PORT)),
            DIGEST_PORT: ("socat", "-t", "60", f"TCP-LISTEN:{DIGEST_PORT},fork,reuseaddr",
                          "EXEC:sha256sum"),
        }
        for port, command in commands.items():
            old = self.mortal.get(port)
            if old and old.poll() is None:
                continue
            if old:
                self.lab.stop(old)
            self.mortal[port] = self.lab.start_server("server", port, *command)

    def sink_report(self):
        self.lab.stop(self.sink)
        with open(self.lab.path("sink.json"), encoding="ascii") as file:
            return json.load(file)


class Load:
    """The clients of a cycle. Counts are kept over all cycles."""

    def __init__(self, site, seed):
        self.site = site
        self.lab = site.lab
        self.counts = dict.fromkeys(
            ("cycles", "downloads", "bench_runs", "bench_bytes", "peer_runs", "peer_sessions",
             "peer_bytes", "peer_resets", "peer_strangers", "iperf3_runs", "digests", "refused",
             "killed"), 0)
        self.bad = dict.fromkeys(("wrong", "truncated", "stalled", "failed"), 0)
        self.complaints = []
        self.lock = threading.Lock()
        self.random = random.Random(seed)
        self.seed = seed
        self.killed = set()  # pids of clients that faults have killed
        self.running = {}    # pid: process, those that faults may kill
        self.until = 0.0
        self.over = False    # interrupted: clients that still run are cut off
        # Counted when an upstream is killed, or a link goes down, and when it is back
        self.upstreams_killed = 0
        self.link_changes = 0

    # ---- book-keeping

    def count(self, name, number=1):
        with self.lock:
            self.counts[name] += number

    def complain(self, kind, text):
        if self.over:
            return
        text = f"{time.strftime('%T')} {text}"
        with self.lock:
            self.bad[kind] += 1
            self.complaints.append(text)
        print(f"# {text}", flush=True)

    def start(self, namespace, *command, **options):
        with self.lock:
            process = self.lab.start(namespace, *command, **options)
            self.running[process.pid] = process
        return process

    def end(self, process, seconds):
        """Its exit code, or None if a fault has killed it."""
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = "timeout"
        with self.lock:
            self.running.pop(process.pid, None)
            was_killed = process.pid in self.killed
            self.killed.discard(process.pid)
            self.lab.stop(process)
        if was_killed:
            return None
        if code == "timeout":
            self.complain("stalled", f"{process.title} did not end within {seconds:.0f} s")
            return None
        return code

    def kill_one(self, pick):
        """SIGKILL for a client and its children; returns its name."""
        with self.lock:
            alive = [process for process in self.running.values() if process.poll() is None]
            if not alive:
                return None
            victim = pick(alive)
            self.killed.add(victim.pid)
            self.counts["killed"] += 1
            try:
                os.killpg(victim.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return victim.title

    def link_was_up(self, before):
        return before % 2 == 0 and self.link_changes == before

    def has_time(self):
        return not self.over and time.monotonic() < self.until

    # ---- clients

    def download(self, port, path, digest):
        changes = self.link_changes
        curl = self.start("client", "curl", "--silent", "--show-error", "--fail", "--max-time",
                          str(PATIENCE), f"http://{RELAY}:{port}/{path}", stdout=subprocess.PIPE)
        with curl.stdout:
            got, size = sha256_of_stream(curl.stdout)
        code = self.end(curl, PATIENCE)
        if code is None:
            return
        # connect, send, receive: over a link that is down the daemon refuses clients, as the kernel
        # would
        if code in (7, 55, 56) and not size and not self.link_was_up(changes):
            self.count("refused")
        elif code != 0:
            kind = {18: "truncated", 28: "stalled"}.get(code, "failed")
            self.complain(kind, f"curl {path} by port {port} ended with {code} after {size} bytes: "
                                f"{tail(curl.log).strip()}")
        elif got != digest:
            self.complain("wrong", f"curl {path} by port {port}: {size} bytes, another sha256")
        self.count("downloads")
        os.unlink(curl.log)

    def run_downloads(self):
        while self.has_time():
            port = self.random.choice((HTTP, HTTP, HAPROXY))
            number = self.random.randrange(2 * SMALL_FILES)
            if number < SMALL_FILES:
                self.download(port, f"small/{number}", self.site.small_digests[number])
            else:
                self.download(port, "big", self.site.big_digest)

    def run_digests(self):
        """A half-close: the answer comes after the end of the request."""
        while self.has_time():
            upstreams_killed, changes = self.upstreams_killed, self.link_changes
            with open(self.lab.path("www/big"), "rb") as source:
                client = self.start("client", "socat", "-t", "60", "-", f"TCP:{RELAY}:{DIGEST}",
                                    stdin=source, stdout=subprocess.PIPE)
            with client.stdout:
                answer = client.stdout.read().split()
            code = self.end(client, PATIENCE)
            if code is None or upstreams_killed % 2 or self.upstreams_killed != upstreams_killed:
                continue  # cut off, or refused, on purpose
            if not answer and not self.link_was_up(changes):
                self.count("refused")
            elif answer[:1] != [self.site.big_digest.encode()]:
                self.complain("wrong" if answer else "failed",
                              f"sha256sum upstream answered {answer}, socat ended with {code}")
            self.count("digests")
            os.unlink(client.log)

    def run_bench(self):
        workloads = (("rr", "--connections", "16"), ("rr", "--connections", "4", "--size", "4K"),
                     ("crr", "--connections", "4"),
                     ("bulk-both", "--connections", "2", "--verify", "full"),
                     ("bulk-up", "--connections", "1", "--verify", "full"),
                     ("slow", "--connections", "8", "--rate", "256K", "--verify", "full"))
        while self.has_time():
            workload = self.random.choice(workloads)
            changes = self.link_changes
            seconds = min(self.random.uniform(2, 12), max(0.5, self.until - time.monotonic()))
            bench = self.start("client", self.site.bench, *workload, "--connect",
                               f"{RELAY}:{SINK}", "--seconds", f"{seconds:.1f}", "--timeout",
                               str(PATIENCE), stdout=subprocess.PIPE)
            with bench.stdout:
                text = bench.stdout.read()
            code = self.end(bench, PATIENCE)
            if code is not None:
                self.judge_bench(workload[0], code, text, bench.log, changes)

    def judge_bench(self, name, code, text, log, changes):
        self.count("bench_runs")
        try:
            report = json.loads(text)
        except ValueError:
            self.complain("failed", f"culvert-bench {name} ended with {code}: {tail(log).strip()}")
            return
        self.count("bench_bytes", report["bytes"])
        errors = {key: count for key, count in report["errors"].items() if count}
        if report["wrong"]:
            self.complain("wrong", f"culvert-bench {name}: {report['wrong']} wrong")
        elif set(errors) <= {"connect", "reset"} and not self.link_was_up(changes):
            self.count("refused", sum(errors.values()))
        elif errors or code != 0:
            kinds = {"short": "truncated", "timeout": "stalled"}
            kind = kinds.get(next(iter(errors), ""), "failed")
            self.complain(kind, f"culvert-bench {name} ended with {code}: {errors}")
        os.unlink(log)

    def run_peers(self):
        """In short runs, so that a killed run costs little."""
        while self.has_time():
            self.run_peers_once(min(12.0, max(1.0, self.until - time.monotonic())))

    def run_peers_once(self, seconds):
        self.seed += 1
        peer = self.start("relay", self.site.peer, "--connect", f"127.0.0.1:{PEER}", "--listen",
                          f"127.0.0.1:{PEER_PORT}", "--minutes", f"{seconds / 60:.4f}",
                          "--concurrency", "24", "--seed", str(self.seed),
                          stdout=subprocess.PIPE)
        with peer.stdout:
            text = peer.stdout.read()
        code = self.end(peer, PATIENCE)
        if code is None:
            return
        try:
            report = json.loads(text)
        except ValueError:
            self.complain("failed", f"test_torture ended with {code}: {tail(peer.log).strip()}")
            return
        self.count("peer_runs")
        self.count("peer_resets", report["reset_by_daemon"])
        for name in ("sessions", "bytes", "strangers"):
            self.count(f"peer_{name}", report[name])
        for kind, number in (("wrong", report["wrong"] + report["extra"]),
                             ("truncated", report["truncated"]), ("stalled", report["stalls"]),
                             ("failed", report["failed"])):
            if number:
                self.complain(kind, f"test_torture, seed {self.seed}: {report}:\n{tail(peer.log)}")

    def run_iperf3(self):
        """Load without verification: it must only go on."""
        options = ((), ("--reverse",), ("--parallel", "4"))
        while self.has_time():
            seconds = max(1, min(self.random.randint(2, 8), int(self.until - time.monotonic())))
            client = self.start("client", "iperf3", "--client", RELAY, "--port", str(IPERF),
                                "--time", str(seconds), "--connect-timeout", "10000",
                                *self.random.choice(options))
            self.end(client, PATIENCE)
            self.count("iperf3_runs")
            os.unlink(client.log)
            # a server that was killed is started anew by the faults; until then do not spin
            time.sleep(0.2)

    def run_cycle(self, seconds):
        """All clients for SECONDS and until the last of them has ended."""
        self.until = time.monotonic() + seconds
        runs = (self.run_downloads, self.run_downloads, self.run_digests, self.run_bench,
                self.run_bench, self.run_iperf3, self.run_peers)
        threads = [threading.Thread(target=self._guard, args=(run,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 3 * PATIENCE)
            if thread.is_alive():
                raise LabError("a client does not end")
        self.count("cycles")

    def _guard(self, run):
        try:
            run()
        except (LabError, OSError) as error:
            self.complain("failed", f"{run.__name__}: {error!r}")


def wait_idle(control, seconds=30.0):
    """Until the daemon holds nothing of a session."""
    def is_idle():
        try:
            resources = ask(control, "status")["resources"]
        except (OSError, ValueError):
            return False
        return (resources["sessions"] == resources["slots_used"] == resources["buffers"] == 0
                and resources["pipes"] == resources["pipes_idle"])

    wait_until(is_idle, "the daemon to be idle", seconds)
