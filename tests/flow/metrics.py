#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The daemon's metrics, read by curl, promtool and Prometheus itself, against `culvert status`.

    conversations  -->  culvert, a forward for each carrier  -->  echo server
                           ^ GET /metrics: curl, prometheus

With --sessions N instead: the time that a scrape takes while N grafted sessions live, and the
longest wait of conversations beside them. Exits with 77 and the reason where this cannot run.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import socket
import stat
import statistics
import subprocess
import sys
import threading
import urllib.parse

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts/lib"))
# pylint: disable=wrong-import-position
from labkit import (RELAY, Daemon, Lab, LabError, begin_or_skip, cases_of, expect, run_cases,
                    run_test, tail, test_options, wait_until)

METRICS = 9464
PROMETHEUS = 9090
ECHO = 7100
NOBODY = 7
CARRIERS = ("copy", "splice", "sockmap", "graft")
ROUNDS, SIZE = 40, 1000
SCRAPES = 15
MOST_MS = 20
EXAMPLES = os.path.join(TOP, "docs/examples")

ECHO_SERVER = """
import asyncio, sys
async def echo(r, w):
    while data := await r.read(65536):
        w.write(data)
    w.close()
async def main():
    s = await asyncio.start_server(echo, sys.argv[1], int(sys.argv[2]))
    await s.serve_forever()
asyncio.run(main())
"""

# ADDRESS ROUNDS SIZE PORT...: a conversation with each, then "said"; ended when stdin is.
TALK = """
import os, socket, sys
address, rounds, size, *ports = sys.argv[1], *map(int, sys.argv[2:])
all = [socket.create_connection((address, port)) for port in ports]
for n in range(rounds):
    for s in all:
        data, got = os.urandom(size), b""
        s.sendall(data)
        while len(got) < size:
            got += s.recv(size - len(got)) or sys.exit("lost")
        assert got == data
print("said", flush=True)
sys.stdin.read()
"""


def parse(text):
    """{name: {labels, as they are written: value}} of all samples."""
    samples = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([a-z_]+)(?:{(.*)})? (\S+)", line).groups()
        rows = samples.setdefault(name, {})
        expect(labels not in rows, f"twice: {line}")
        rows[labels] = float(value)
    return samples


def total(samples, name, *labels):
    return sum(value for key, value in samples.get(name, {}).items()
               if all(label in key for label in labels))


def promtool(*arguments, text=None):
    result = subprocess.run(["promtool", *arguments], input=text, text=True, check=False,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=EXAMPLES)
    expect(result.returncode == 0 and (text is None or not result.stdout),
           f"promtool {' '.join(arguments)}: {result.stdout}")


@contextlib.contextmanager
def stopped(thread):
    """As by a debugger: this thread alone."""
    ptrace, attach, detach, any_thread = ctypes.CDLL(None, use_errno=True).ptrace, 16, 17, 0x40000000
    expect(ptrace(attach, thread, None, None) == 0, f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, any_thread)
    try:
        yield
    finally:
        ptrace(detach, thread, None, None)


class Trial:
    def __init__(self, lab, program):
        self.lab = lab
        self.program = program
        self.daemon = None

    def begin(self, config, *options):
        path = self.lab.path("culvert.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write(config)
        self.daemon = Daemon(self.lab, self.program, "auto", (), "--config", path, "--seccomp", "kill",
                             *options)

    def end(self):
        if self.daemon:
            self.daemon.stop()
        self.daemon = None

    def curl(self, url, *options):
        process = self.lab.start("relay", "curl", "--silent", "--show-error", "--max-time", "10",
                                 *options, url, stdout=subprocess.PIPE, text=True)
        text = process.communicate()[0]
        self.lab.finish(process, 1)
        return text

    def scrape(self, *options):
        return self.curl(f"http://127.0.0.1:{METRICS}/metrics", *options)

    def talk(self, ports):
        process = self.lab.start("client", sys.executable, "-c", TALK, RELAY, str(ROUNDS),
                                 str(SIZE), *map(str, ports), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        said = process.stdout.readline()
        expect(said == "said\n", f"the conversations ended: {tail(process.log)}")
        return process

    # --- what is checked ---

    def check_http(self):
        url = f"http://127.0.0.1:{METRICS}"
        expect("/metrics" in self.curl(url), "/ does not say where they are")
        for path, options, status in (("/metrics", ("--head",), 404), ("/metrics/x", (), 404),
                                      ("/metrics?x", (), 200), ("/metrics", ("-d", "x"), 404)):
            got = self.curl(url + path, *options, "--output", "/dev/null", "--write-out",
                            "%{http_code}")
            expect(got == str(status), f"{path} {options}: {got}")
        plain = self.scrape("--include")
        expect("text/plain; version=0.0.4" in plain and "Connection: close" in plain, plain[:300])
        promtool("check", "metrics", text=self.scrape())

    def settled(self):
        """A scrape that agrees with status: a busy worker makes a counter late."""
        samples = None

        def agrees():
            nonlocal samples
            samples = parse(self.scrape())
            try:
                self.check_agreement(samples)
            except LabError as error:
                return print(f"# not yet: {error}")
            return True

        wait_until(agrees, "metrics to agree with status")
        return samples

    def check_agreement(self, samples):
        """With what the control socket says; nothing moves meanwhile."""
        status = self.daemon.ask("status")
        for cause, value in status["errors"].items():
            got = samples["culvert_errors_total"][f'cause="{cause}"']
            expect(got == value, f"{cause}: {got}, status: {value}")
        for name, value in status["handovers"].items():
            got = total(samples, "culvert_handovers_total", f'carrier="{name.removeprefix("to_")}"')
            expect(got == value, f"{name}: {got}, status: {value}")
        for carrier in status["carriers"]:
            got = total(samples, "culvert_bytes_total", f'carrier="{carrier["carrier"]}"')
            expect(got == carrier["bytes"], f"{carrier}: {got}")
        for forward in status["forwards"]:
            label = f'forward="{forward["name"]}"'
            for key, name in (("live", "culvert_sessions"),
                              ("accepted", "culvert_sessions_accepted_total"),
                              ("finished", "culvert_sessions_finished_total"),
                              ("denied", "culvert_sessions_denied_total"),
                              ("finished", "culvert_session_duration_seconds_count")):
                expect(samples[name][label] == forward[key], f"{name}: {samples[name]}, {forward}")
            for direction in "upstream", "client":
                got = total(samples, "culvert_bytes_total", label, f'-to-{direction}"')
                expect(got == forward[f"bytes_to_{direction}"], f"{forward}: {got} bytes")
                got = total(samples, "culvert_datagrams_total", label, f'-to-{direction}"')
                expect(got == forward[f"datagrams_to_{direction}"], f"{forward}: {got} datagrams")
            expect(samples["culvert_forward_info"][f'{label},protocol="{forward["protocol"]}"'] == 1,
                   f"{samples['culvert_forward_info']}")

    def check_live(self, samples):
        for carrier in CARRIERS:
            got = samples["culvert_bytes_total"]
            mine = [got[f'forward="{carrier}",direction="{direction}",carrier="{carrier}"']
                    for direction in ("client-to-upstream", "upstream-to-client")]
            # the first bytes of a session, and those before a graft, are copied
            expect(all(0.5 * ROUNDS * SIZE < n <= ROUNDS * SIZE for n in mine), f"{carrier}: {mine}")
            expect(total(samples, "culvert_bytes_total", f'forward="{carrier}"')
                   == 2 * ROUNDS * SIZE, f"{carrier}: {got}")
            expect(samples["culvert_connect_duration_seconds_count"][f'forward="{carrier}"'] == 1,
                   "connects")
        for to, reason in ("sockmap", "engine"), ("graft", "eligible"):
            expect(total(samples, "culvert_handovers_total", f'carrier="{to}",reason="{reason}"') == 2,
                   f"{samples['culvert_handovers_total']}")

    def check_prometheus(self, samples):
        path = self.lab.path("prometheus.yml")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{EXAMPLES}/culvert-alerts.yml]
scrape_configs:
  - job_name: culvert
    static_configs: [{{targets: ["127.0.0.1:{METRICS}"]}}]
""")
        self.lab.start_server("relay", PROMETHEUS, "prometheus", f"--config.file={path}",
                              f"--storage.tsdb.path={self.lab.path('prometheus')}",
                              f"--web.listen-address=127.0.0.1:{PROMETHEUS}")
        for query, value in (
                ("up", 1), ("count(culvert_build_info)", 1),
                ("sum(culvert_bytes_total)", total(samples, "culvert_bytes_total")),
                ('culvert_errors_total{cause="connect-refused"}', 1),
                ('culvert_server_up{forward="refused"}', 0),
                ("sum(culvert_session_duration_seconds_count)", 1),
                ('histogram_quantile(1, culvert_session_duration_seconds_bucket{forward="refused"})'
                 " < bool 0.1", 1)):
            wait_until(lambda q=query, v=value: self.query(q) == v,
                       f"prometheus to say {value} to {query}", 15)

    def query(self, query):
        text = self.curl(f"http://127.0.0.1:{PROMETHEUS}/api/v1/query?"
                         + urllib.parse.urlencode({"query": query}))
        if not text.startswith("{"):  # "Service Unavailable": it listens, and is not ready
            return None
        answer = json.loads(text)
        result = answer["data"]["result"] if answer["status"] == "success" else []
        return float(result[0]["value"][1]) if len(result) == 1 else None

    def check_examples(self, samples):
        promtool("check", "rules", "culvert-alerts.yml")
        promtool("test", "rules", os.path.join(TOP, "tests/flow/culvert-alerts.test.yml"))
        with open(os.path.join(EXAMPLES, "culvert-alerts.yml"), encoding="ascii") as file:
            texts = [file.read()]
        with open(os.path.join(EXAMPLES, "grafana-dashboard.json"), encoding="ascii") as file:
            texts += [target["expr"] for panel in json.load(file)["panels"]
                      for target in panel["targets"]]
        names = {name for text in texts for name in re.findall(r"\b(?:culvert|process)_[a-z_]+\b", text)}
        with open(os.path.join(TOP, "docs/operations.md"), encoding="utf-8") as file:
            manual = file.read()
        families = {re.sub("_(bucket|sum|count)$", "", name) for name in samples}
        unknown = {name for name in families if f"`{name}`" not in manual}
        expect(not unknown, f"operations.md lacks {unknown}")
        unknown = names - set(samples)
        expect(not unknown and len(names) > 8, f"examples ask for {unknown or names}")

    def check_reload(self):
        path = self.lab.path("culvert.conf")
        with open(path, encoding="ascii") as file:
            config = file.read()
        for text, successful in ((config.replace(f":{METRICS}", f":{METRICS + 1}"), 0), (config, 1)):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            result = subprocess.run([self.program, "reload", "--control", self.daemon.control],
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    check=False)
            expect(result.returncode == (not successful) and
                   (successful or "metrics" in result.stdout), f"reload: {result.stdout}")
            got = parse(self.scrape())["culvert_last_reload_successful"]
            expect(got == {None: successful}, f"after a reload: {got}")

    # --- cases ---

    def test_numbers(self):
        forwards = "".join(f"""
[forward {carrier}]
listen = {RELAY}:{9000 + n}
upstream = {RELAY}:{ECHO}
engine = {"auto" if carrier == "graft" else carrier}
""" for n, carrier in enumerate(CARRIERS))
        self.begin(f"[culvert]\nmetrics = 127.0.0.1:{METRICS}\n{forwards}"
                   f"[forward refused]\nlisten = {RELAY}:9010\nupstream = {RELAY}:{NOBODY}\n"
                   f"[forward udp]\nlisten = {RELAY}:9011/udp\nupstream = {RELAY}:{NOBODY}\n")
        before = parse(self.scrape())
        expect(total(before, "culvert_server_up") == 6, f"{before['culvert_server_up']}")
        expect(before["culvert_carrier_available"] == {f'carrier="{carrier}"': 1 for carrier in
                                                       ("graft", "sockmap", "splice")},
               f"{before['culvert_carrier_available']}")
        talk = self.talk(9000 + n for n in range(len(CARRIERS)))
        export = self.lab.start("client", self.program, "export", "--control", self.daemon.control,
                                stdout=subprocess.DEVNULL)
        wait_until(lambda: total(parse(self.scrape()), "culvert_standby_in_sync") == 1, "an export")
        self.lab.start("client", "curl", "--silent", f"http://{RELAY}:9010/").wait()
        samples = self.settled()
        self.check_live(samples)
        self.check_http()
        self.check_prometheus(samples)
        self.check_examples(samples)
        talk.stdin.close()
        self.lab.finish(talk, 5)
        self.lab.stop(export)
        wait_until(lambda: total(parse(self.scrape()), "culvert_sessions") == 0, "no sessions")
        after = self.settled()
        self.check_never_down(samples, after)
        self.check_reload()
        self.daemon.stop()

    def check_never_down(self, before, after):
        for name, rows in before.items():
            for labels, value in rows.items():
                if name.endswith(("_total", "_count", "_bucket", "_sum")):
                    expect(after[name][labels] >= value, f"{name}{{{labels}}} went down")

    def test_unix_socket(self):
        path = self.lab.path("m/metrics.sock")
        config = (f"[culvert]\nmetrics = unix:{path}\n"
                  f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO}\n")
        self.begin(config)
        for _ in range(2):
            got = os.stat(path)
            group = os.stat(f"/proc/{self.daemon.pid}").st_gid
            expect(stat.S_IMODE(got.st_mode) == 0o660 and got.st_gid == group, f"{path}: {got}")
            promtool("check", "metrics",
                     text=self.curl("http://localhost/metrics", "--unix-socket", path))
            self.daemon.kill()  # the socket it leaves is replaced
        self.daemon.stop()
        expect(not os.path.exists(path), f"{path} is still there")

    def first_worker(self):
        """The first thread but the main one that waits for events: ThreadSanitizer has another."""
        tasks = f"/proc/{self.daemon.pid}/task"

        def waits(task):
            with open(f"{tasks}/{task}/wchan", encoding="ascii") as file:
                return "poll" in file.read()

        others = sorted(map(int, os.listdir(tasks)))[1:]
        return next(filter(waits, others), others[0])

    def test_late_worker(self):
        """One that takes no turns does not keep bytes of others' sessions from being counted."""
        self.begin(f"[culvert]\nmetrics = 127.0.0.1:{METRICS}\nworkers = 2\n"
                   f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO}\n"
                   "engine = sockmap\n")
        talk = self.talk([9000] * 16)
        with stopped(self.first_worker()):
            counted = total(parse(self.scrape()), "culvert_bytes_total")
            other = sum(flow["bytes"] for session in self.daemon.ask("sessions")["sessions"]
                        for flow in session["flows"])
            expect(counted >= other > 0, f"{counted} bytes, {other} of the other worker's")
        wait_until(lambda: total(parse(self.scrape()), "culvert_bytes_total")
                   == 16 * 2 * ROUNDS * SIZE, "all bytes")
        talk.stdin.close()
        self.lab.finish(talk, 5)
        self.daemon.stop()

    def test_no_memory(self):
        """A scrape gets a whole page, or 503."""
        self.begin(f"[culvert]\nmetrics = 127.0.0.1:{METRICS}\n" + "".join(
            f"[forward f{n}]\nlisten = {RELAY}:{9000 + n}\nupstream = {RELAY}:{ECHO}\n"
            for n in range(300)))
        account = os.stat(f"/proc/{self.daemon.pid}")
        with open(f"/proc/{self.daemon.pid}/status", encoding="ascii") as file:
            data = 1024 * int(re.search(r"VmData:\s+(\d+)", file.read())[1])
        for more in (0, *(1 << n for n in range(17, 28))):
            # as the daemon's account: root may lack CAP_SYS_RESOURCE
            subprocess.run(["prlimit", f"--pid={self.daemon.pid}", f"--data={data + more}:"],
                           check=True, user=account.st_uid, group=account.st_gid, extra_groups=[])
            page = self.scrape("--include")
            whole = page.startswith("HTTP/1.1 200 ") and "\nprocess_max_fds " in page
            expect(whole or page.startswith("HTTP/1.1 503 "), f"{page[:300]}... {page[-80:]}")
            expect(more or not whole, "the page needs no memory")
            if whole:
                break
        expect(whole, "no page with 128 MB more")
        self.daemon.stop()

    def connect(self, path, count):
        """COUNT clients that say nothing; fewer, if the backlog is full."""
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                   for _ in range(count)]
        for client in clients:
            if client.connect_ex(path):
                client.close()
        return clients

    def test_crowds(self):
        path = self.lab.path("m/metrics.sock")
        self.begin(f"[culvert]\nmetrics = unix:{path}\n"
                   f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO}\n")
        for count in 9, 12, 17, 40:
            clients = self.connect(path, count) + self.connect(path, count)
            for client in clients:
                client.close()
            self.curl("http://localhost/metrics", "--unix-socket", path)
        with self.slow_clients(path):
            self.curl("http://localhost/metrics", "--unix-socket", path)
            expect(self.daemon.stop() == 0, "the daemon's end")

    @contextlib.contextmanager
    def slow_clients(self, path):
        """Eight that send a line of a header now and then, for ever."""
        begun, over = threading.Event(), threading.Event()

        def drip():
            clients = self.connect(path, 8)
            while not over.wait(0.2):
                for i, client in enumerate(clients):
                    try:
                        client.send(b"GET /metrics HTTP/1.1\r\nX: ")
                    except OSError:
                        client.close()
                        clients[i] = self.connect(path, 1)[0]
                begun.set()

        thread = threading.Thread(target=drip)
        thread.start()
        begun.wait()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def measure(self, wanted):
        """A scrape with many sessions, and how long others wait meanwhile."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        sessions = min(wanted, (limit - 600) // 2)
        bench = os.path.join(os.path.dirname(self.program), "culvert-bench")
        processes = str(1 + 2 * sessions // limit)
        self.begin(f"[culvert]\nmetrics = 127.0.0.1:{METRICS}\nmax-sessions = {wanted}\n"
                   "max-sessions-per-client = 0\n"
                   f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO + 1}\n"
                   f"[forward b]\nlisten = {RELAY}:9001\nupstream = {RELAY}:{ECHO + 1}\n"
                   "engine = copy\n")
        self.lab.start_server("server", ECHO + 1, bench, "sink", "--listen", f"{RELAY}:{ECHO + 1}",
                              "--processes", "2")
        idle = self.lab.start("client", bench, "idle", "--connect", f"{RELAY}:9000", "--connections",
                              str(sessions), "--processes", processes)
        wait_until(lambda: total(parse(self.scrape()), "culvert_sessions") == sessions,
                   f"{sessions} sessions", 60)
        for scrapes in 0, SCRAPES:
            talk = self.lab.start("client", bench, "rr", "--connect", f"{RELAY}:9001",
                                  "--connections", "4", "--seconds", "2", stdout=subprocess.PIPE,
                                  text=True)
            if scrapes:
                times = [1000 * float(line) for line in self.curl(
                    f"http://127.0.0.1:{METRICS}/metrics?[1-{scrapes}]", "--output", "/dev/null",
                    "--write-out", "%{time_total}\n").split()]
            latency = json.loads(talk.communicate()[0])["latency_us"]
            print(f"4 conversations by copy, {scrapes} scrapes in 2 s: the longest wait is "
                  f"{latency['max'] / 1000:.1f} ms, p99 {latency['p99'] / 1000:.2f} ms")
        grafted = total(parse(self.scrape()), "culvert_handovers_total", 'carrier="graft"') / 2
        print(f"{sessions} sessions, {grafted:g} of them grafted: a scrape takes "
              f"{statistics.median(times):.1f} ms (median of {len(times)}; at most {max(times):.1f})")
        expect(statistics.median(times) < MOST_MS, f"over {MOST_MS} ms")
        self.lab.stop(idle, 60)
        self.daemon.stop()


def run(program, sessions):
    with Lab(loopback=True) as lab:
        trial = Trial(lab, program)
        if sessions:
            return trial.measure(sessions)
        lab.start_server("server", ECHO, sys.executable, "-c", ECHO_SERVER, RELAY, str(ECHO))
        return run_cases(trial, cases_of(trial))


def main():
    options = test_options(__doc__, ("--sessions", {"type": int, "default": 0, "metavar": "N"}))
    begin_or_skip(["ip", "curl", "promtool", "prometheus"])
    return run_test(lambda: run(options.culvert, options.sessions))


sys.exit(main())
