# SPDX-License-Identifier: BSD-2-Clause
"""The daemon's metrics, read by curl, promtool and Prometheus itself, against `culvert status`.

    conversations  -->  culvert, a forward for each carrier  -->  echo server
                           ^ GET /metrics: curl, prometheus; GET /, /state.json: curl, chromium

test_many_sessions measures the time of a scrape while --sessions N grafted sessions live (20,000), and
the longest wait of conversations beside them.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import socket
import stat
import statistics
import subprocess
import threading
import urllib.parse

import pytest
from browser import Browser
from labkit import RELAY, TOP, Daemon, Lab, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", "curl", "promtool", "prometheus")
METRICS = 9464
PROMETHEUS = 9090
ECHO = 7100
NOBODY = 7
CARRIERS = ("copy", "splice", "sockmap", "graft")
ROUNDS, SIZE = 40, 1000
SCRAPES = 15
MOST_MS = 20
FORWARD = f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO}\n"
EXAMPLES = os.path.join(TOP, "docs/examples")


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


def without_ages(forward):
    """Of an answer of JSON, what does not change by itself."""
    if isinstance(forward, list):
        return [without_ages(one) for one in forward]
    if isinstance(forward, dict):
        return {key: without_ages(value) for key, value in forward.items() if "age_ms" not in key}
    return forward


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
        self.daemon, self.config = None, ""

    def begin(self, config, metrics=f"127.0.0.1:{METRICS}"):
        self.config = f"[culvert]\nmetrics = {metrics}\n{config}"
        self.daemon = Daemon(self.lab, self.program, "auto", (), "--config",
                             self.lab.write("culvert.conf", self.config), "--seccomp", "kill")

    def end(self):
        if self.daemon:
            self.daemon.stop()
        self.daemon = None

    def curl(self, url, *options):
        return self.lab.run("relay", "curl", "--silent", "--show-error", "--max-time", "10", *options,
                            url)

    def scrape(self, *options):
        return self.curl(f"http://127.0.0.1:{METRICS}/metrics", *options)

    @contextlib.contextmanager
    def talk(self, ports):
        """A conversation with each, which stays open meanwhile."""
        with contextlib.ExitStack() as undo:
            with self.lab.inside("client"):
                socks = [undo.enter_context(socket.create_connection((RELAY, port)))
                         for port in ports]
            for _ in range(ROUNDS):
                for sock in socks:
                    data = os.urandom(SIZE)
                    sock.sendall(data)
                    expect(sock.recv(SIZE, socket.MSG_WAITALL) == data, "other bytes came back")
            yield

    # --- what is checked ---

    def check_http(self):
        url = f"http://127.0.0.1:{METRICS}"
        expect("/metrics" in self.curl(f"{url}/x"), "/x does not say where they are")
        for path, options, status in (("/metrics", ("--head",), 200), ("/metrics/x", (), 404),
                                      ("/metrics?x", (), 200), ("/metrics", ("-d", "x"), 404),
                                      ("/", (), 200), ("/?x", (), 200), ("/", ("-d", "x"), 404),
                                      ("/state.json", (), 200), ("/state.json/", (), 404),
                                      ("/state.json", ("-H", "Host: 10.0.0.1.evil.test"), 404),
                                      ("/", ("-H", "Host: relay.example.org"), 404),
                                      ("/metrics", ("-H", "Host: relay.example.org"), 200),
                                      ("/state.json", ("-H", "Host: localhost:1"), 200),
                                      ("/state", (), 404), ("/index.html", ("--head",), 404)):
            got = self.curl(url + path, *options, "--output", "/dev/null", "--write-out",
                            "%{http_code}")
            expect(got == str(status), f"{path} {options}: {got}")
        for path in "/", "/state.json":
            got = self.curl(url + path, "-H", "Host: relay.example.org")
            expect("ask by an address, not by a name" in got, f"{path}: {got}")
        plain = self.scrape("--include")
        expect("text/plain; version=0.0.4" in plain and "Connection: close" in plain, plain[:300])
        promtool("check", "metrics", text=self.scrape())
        for path, kind in ("/", "text/html; charset=utf-8"), ("/state.json", "application/json"):
            head = self.curl(url + path, "--head")
            expect(head.startswith("HTTP/1.1 200 ") and f"Content-Type: {kind}\n" in head and
                   "default-src 'none'; connect-src 'self';" in head and
                   "X-Content-Type-Options: nosniff\n" in head and
                   "Cache-Control: no-store\n" in head and head.endswith("\n\n"), head)
            length = int(re.search(r"Content-Length: (\d+)", head)[1])
            expect(length > 500, f"{path}: {length} bytes")
        with open(os.path.join(TOP, "user/daemon/page.html"), encoding="ascii") as file:
            expect(self.curl(url) == file.read(), "another page")

    def state(self):
        return json.loads(self.curl(f"http://127.0.0.1:{METRICS}/state.json"))

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
            for server in forward["servers"]:
                at = f'{label},server="{server["server"]}"'
                answer = f'{at},answer="{server["check"]}"'
                expect(samples["culvert_server_check_info"].get(answer) == (1 if server["check"] else None) and
                       samples["culvert_server_up"][at] == (server["state"] in ("up", "returning")),
                       f"{server}: {samples['culvert_server_check_info']}")

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

    def check_state(self):
        """The page's numbers, which are at most a second old, against those of status."""
        def agrees():
            state, status = self.state(), self.daemon.ask("status")
            return [state[key] for key in ("pid", "errors")] == \
                [status[key] for key in ("pid", "errors")] and \
                [without_ages(forward) for forward in state["forwards"]] == \
                [without_ages(forward) for forward in status["forwards"]] and state

        state = wait_until(agrees, "the page's state to agree with status")
        sent = len(CARRIERS) * ROUNDS * SIZE
        expect(state["clients"] == 1 and state["busiest_clients"] == [
            {"client": "10.0.1.1", "sessions": len(CARRIERS), "bytes_to_upstream": sent,
             "bytes_to_client": sent}], f"{state['busiest_clients']}")

    def check_prometheus(self, samples):
        path = self.lab.write("prometheus.yml", f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{EXAMPLES}/culvert-alerts.yml]
scrape_configs:
  - job_name: culvert
    static_configs: [{{targets: ["127.0.0.1:{METRICS}"]}}]
""")
        prometheus = self.lab.start_server(
            "relay", PROMETHEUS, "prometheus", f"--config.file={path}",
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
        self.lab.stop(prometheus)  # its scrapes would wait for the stopped worker of another case

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
        for text, successful in ((self.config.replace(f":{METRICS}", f":{METRICS + 1}"), 0),
                                 (self.config, 1)):
            self.lab.write("culvert.conf", text)
            try:
                self.daemon.command("reload")
                expect(successful, "the reload")
            except LabError as error:
                expect(not successful and "metrics" in str(error), f"reload: {error}")
            got = parse(self.scrape())["culvert_last_reload_successful"]
            expect(got == {None: successful}, f"after a reload: {got}")

    def check_never_down(self, before, after):
        for name, rows in before.items():
            for labels, value in rows.items():
                if name.endswith(("_total", "_count", "_bucket", "_sum")):
                    expect(after[name][labels] >= value, f"{name}{{{labels}}} went down")

    def first_worker(self):
        """The first thread but the main one that waits for events: ThreadSanitizer has another."""
        tasks = f"/proc/{self.daemon.pid}/task"

        def waits(task):
            with open(f"{tasks}/{task}/wchan", encoding="ascii") as file:
                return "poll" in file.read()

        others = sorted(map(int, os.listdir(tasks)))[1:]
        return next(filter(waits, others), others[0])

    def connect(self, path, count):
        """COUNT clients that say nothing; fewer, if the backlog is full."""
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                   for _ in range(count)]
        for client in clients:
            if client.connect_ex(path):
                client.close()
        return clients


@pytest.fixture(scope="module")
def lab():
    with Lab(loopback=True) as one:
        one.start_echo("server", ECHO)
        yield one


@pytest.fixture
def trial(lab, culvert):
    return Trial(lab, culvert)


# --- cases ---

def test_numbers(trial):
    forwards = "".join(f"""
[forward {carrier}]
listen = {RELAY}:{9000 + n}
upstream = {RELAY}:{ECHO}
engine = {"auto" if carrier == "graft" else carrier}
""" for n, carrier in enumerate(CARRIERS))
    trial.begin(f"{forwards}check = 0.1\n"
                f"[forward refused]\nlisten = {RELAY}:9010\nupstream = {RELAY}:{NOBODY}\n"
                f"[forward udp]\nlisten = {RELAY}:9011/udp\nupstream = {RELAY}:{NOBODY}\n")
    before = parse(trial.scrape())
    expect(total(before, "culvert_server_up") == 6, f"{before['culvert_server_up']}")
    expect(before["culvert_carrier_available"] == {f'carrier="{carrier}"': 1 for carrier in
                                                   ("graft", "sockmap", "splice")},
           f"{before['culvert_carrier_available']}")
    with trial.talk(9000 + n for n in range(len(CARRIERS))):
        exports = [trial.lab.start("client", trial.program, "export", "--control",
                                   trial.daemon.control, stdout=subprocess.DEVNULL) for _ in range(2)]
        wait_until(lambda: total(parse(trial.scrape()), "culvert_standby_in_sync") == 2, "exports")
        trial.lab.start("client", "curl", "--silent", f"http://{RELAY}:9010/").wait()
        samples = trial.settled()
        trial.check_live(samples)
        trial.check_http()
        trial.check_state()
        trial.check_prometheus(samples)
        trial.check_examples(samples)
    for export in exports:
        trial.lab.stop(export)
    wait_until(lambda: total(parse(trial.scrape()), "culvert_sessions") == 0, "no sessions")
    after = trial.settled()
    trial.check_never_down(samples, after)
    trial.check_reload()
    trial.daemon.stop()


def test_unix_socket(trial):
    path = trial.lab.path("m/metrics.sock")
    trial.begin(FORWARD, f"unix:{path}")
    for _ in range(2):
        got = os.stat(path)
        group = os.stat(f"/proc/{trial.daemon.pid}").st_gid
        expect(stat.S_IMODE(got.st_mode) == 0o660 and got.st_gid == group, f"{path}: {got}")
        promtool("check", "metrics",
                 text=trial.curl("http://localhost/metrics", "--unix-socket", path))
        trial.daemon.kill()  # the socket it leaves is replaced
    trial.daemon.stop()
    expect(not os.path.exists(path), f"{path} is still there")


def test_late_worker(trial):
    """One that takes no turns does not keep bytes of others' sessions from being counted."""
    trial.begin(f"workers = 2\n{FORWARD}engine = sockmap\n")
    with trial.talk([9000] * 16), stopped(trial.first_worker()):
        counted = total(parse(trial.scrape()), "culvert_bytes_total")
        other = sum(flow["bytes"] for session in trial.daemon.ask("sessions")["sessions"]
                    for flow in session["flows"])
        expect(counted >= other > 0, f"{counted} bytes, {other} of the other worker's")
    wait_until(lambda: total(parse(trial.scrape()), "culvert_bytes_total")
               == 16 * 2 * ROUNDS * SIZE, "all bytes")
    trial.daemon.stop()


def test_no_memory(trial):
    """A scrape gets a whole page, or 503."""
    trial.begin("".join(
        f"[forward f{n}]\nlisten = {RELAY}:{9000 + n}\nupstream = {RELAY}:{ECHO}\n"
        for n in range(300)))
    account = os.stat(f"/proc/{trial.daemon.pid}")
    with open(f"/proc/{trial.daemon.pid}/status", encoding="ascii") as file:
        data = 1024 * int(re.search(r"VmData:\s+(\d+)", file.read())[1])
    for more in (0, *(1 << n for n in range(17, 28))):
        # as the daemon's account: root may lack CAP_SYS_RESOURCE
        subprocess.run(["prlimit", f"--pid={trial.daemon.pid}", f"--data={data + more}:"],
                       check=True, user=account.st_uid, group=account.st_gid, extra_groups=[])
        page = trial.scrape("--include")
        whole = page.startswith("HTTP/1.1 200 ") and "\nprocess_max_fds " in page
        expect(whole or page.startswith("HTTP/1.1 503 "), f"{page[:300]}... {page[-80:]}")
        expect(more or not whole, "the page needs no memory")
        if whole:
            break
    expect(whole, "no page with 128 MB more")
    trial.daemon.stop()


def test_crowds(trial):
    """Some that say nothing, and go, and some whose request is never whole."""
    path = trial.lab.path("m/metrics.sock")
    trial.begin(FORWARD, f"unix:{path}")
    for count in 9, 12, 17, 40:
        clients = trial.connect(path, count) + trial.connect(path, count)
        for client in clients:
            client.close()
        trial.curl("http://localhost/metrics", "--unix-socket", path)
    for client in trial.connect(path, 8):
        client.send(b"GET /metrics HTTP/1.1\r\nX: ")
    trial.curl("http://localhost/metrics", "--unix-socket", path)
    expect(trial.daemon.stop() == 0, "the daemon's end")


def clients_from(lab, addresses, sessions, port):
    """{address: its open connections to PORT of the relay}: SESSIONS[n] of ADDRESSES[n]."""
    socks = {}
    for address, count in zip(addresses, sessions):
        with lab.inside("client"):
            socks[address] = [socket.create_connection((RELAY, port), source_address=(address, 0))
                              for _ in range(count)]
    return socks


def test_clients(trial):
    """Those with the most sessions come first, and no more than 20 are told."""
    addresses = [f"10.0.1.{n}" for n in range(20, 45)]
    counts = [1 + n % 7 for n in range(len(addresses))]
    # by copy nothing is tried at the start: what a scrape calls is called for the first time
    trial.begin(f"workers = 2\n{FORWARD}engine = copy\n")
    socks = clients_from(trial.lab, addresses, counts, 9000)
    for address in addresses:
        socks[address][0].sendall(bytes(SIZE))
        expect(len(socks[address][0].recv(SIZE, socket.MSG_WAITALL)) == SIZE, "the echo")
    wanted = sorted(zip(addresses, counts), key=lambda row: -row[1])[:20]
    state = wait_until(lambda: (state := trial.state())["clients"] == len(addresses) and [
        (row["client"], row["sessions"]) for row in state["busiest_clients"]] == wanted and state,
                       "the busiest clients")
    for row in state["busiest_clients"]:
        expect(row["bytes_to_upstream"] == SIZE == row["bytes_to_client"], f"{row}")
    for sock in (sock for some in socks.values() for sock in some):
        sock.close()
    wait_until(lambda: trial.state()["clients"] == 0, "no clients")
    trial.daemon.stop()


def test_browser(trial):
    """The page in a real browser, while clients talk. Without chromium this fails: no skip."""
    expect(shutil.which("chromium"), "chromium is missing: scripts/deps page")
    logs = os.path.join(TOP, "build/test-logs")
    os.makedirs(logs, exist_ok=True)
    trial.begin(f"{FORWARD}[forward mail]\nlisten = {RELAY}:9001\n"
                f"upstream = {RELAY}:{ECHO} weight=3 {RELAY}:{NOBODY} {RELAY}:{ECHO + 5} backup\n"
                "check = 1\n"
                f"[forward dns]\nlisten = {RELAY}:9002/udp\nupstream = {RELAY}:{NOBODY}\n")
    with contextlib.closing(Browser(trial.lab, "relay")) as browser:
        browser.open(f"http://127.0.0.1:{METRICS}/")
        with talking(clients_from(trial.lab, ["10.0.1.1", "10.0.1.21"], [3, 2], 9001)):
            check_page(browser)
            for scheme in "light", "dark":
                path = os.path.join(logs, f"metrics-page-{scheme}.png")
                browser.screenshot(path, scheme)
                print(f"the page for {scheme} screens: {path}")
        expect(not browser.complaints, f"{browser.complaints}")
        trial.daemon.die()
        browser.wait(lambda: "no answer since" in browser.evaluate("document.body.innerText"), "the loss")
        trial.daemon.start()
        browser.wait(lambda: browser.rows("forwards")[1][4:6] == ["0", "0"], "the next daemon")
    trial.daemon.stop()


def check_page(browser):
    """Its tables, and the rates of a second state."""
    def moves(texts):
        return all(re.fullmatch(r"[1-9][0-9.]* (KiB|MiB)", text) for text in texts)

    browser.wait(lambda: (rows := browser.rows("forwards")) and moves(rows[1][6:8]), "rates of a forward")
    browser.wait(lambda: all(moves(row[2:4]) for row in browser.rows("clients")), "rates of clients")
    forwards = [row[:5] for row in browser.rows("forwards")]
    expect(forwards == [["a", f"{RELAY}:9000", "auto", "active", "0"],
                        ["mail", f"{RELAY}:9001", "auto", "active", "5"],
                        ["dns", f"{RELAY}:9002/udp", "auto", "active", "0"]], f"{forwards}")
    servers = [row[:5] for row in browser.rows("servers")]
    expect(servers[1:4] == [["mail", f"{RELAY}:{ECHO}", "up", "3", "5"],
                            ["mail", f"{RELAY}:{NOBODY}", "failed", "1", "0"],
                            ["mail", f"{RELAY}:{ECHO + 5}", "failed", "backup", "0"]], f"{servers}")
    clients = [row[:2] for row in browser.rows("clients")]
    expect(clients == [["10.0.1.1", "3"], ["10.0.1.21", "2"]], f"{clients}")


@contextlib.contextmanager
def talking(socks):
    """All of SOCKS, as of clients_from(), until their end."""
    def talk(sock):
        with contextlib.suppress(OSError), sock:
            while not ended.is_set():
                sock.sendall(bytes(8 * SIZE))
                sock.recv(8 * SIZE, socket.MSG_WAITALL)
                ended.wait(0.05)

    ended = threading.Event()
    talks = [threading.Thread(target=talk, args=(sock,)) for some in socks.values() for sock in some]
    for one in talks:
        one.start()
    try:
        yield
    finally:
        ended.set()
        for one in talks:
            one.join()


def test_many_sessions(trial, request):
    """A scrape with many sessions, and how long others wait meanwhile."""
    wanted = request.config.option.sessions or 20000
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    sessions = min(wanted, (limit - 600) // 2)
    bench = os.path.join(os.path.dirname(trial.program), "culvert-bench")
    processes = str(1 + 2 * sessions // limit)
    trial.begin(f"max-sessions = {wanted}\n"
                "max-sessions-per-client = 0\n"
                f"[forward a]\nlisten = {RELAY}:9000\nupstream = {RELAY}:{ECHO + 1}\n"
                f"[forward b]\nlisten = {RELAY}:9001\nupstream = {RELAY}:{ECHO + 1}\n"
                "engine = copy\n")
    trial.lab.start_server("server", ECHO + 1, bench, "sink", "--listen", f"{RELAY}:{ECHO + 1}",
                           "--processes", "2")
    idle = trial.lab.start("client", bench, "idle", "--connect", f"{RELAY}:9000", "--connections",
                           str(sessions), "--processes", processes)
    wait_until(lambda: total(parse(trial.scrape()), "culvert_sessions") == sessions,
               f"{sessions} sessions", 60)
    for scrapes in 0, SCRAPES:
        talk = trial.lab.start("client", bench, "rr", "--connect", f"{RELAY}:9001",
                               "--connections", "4", "--seconds", "2", stdout=subprocess.PIPE,
                               text=True)
        if scrapes:
            times = [1000 * float(line) for line in trial.curl(
                f"http://127.0.0.1:{METRICS}/metrics?[1-{scrapes}]", "--output", "/dev/null",
                "--write-out", "%{time_total}\n").split()]
        latency = json.loads(talk.communicate()[0])["latency_us"]
        print(f"4 conversations by copy, {scrapes} scrapes in 2 s: the longest wait is "
              f"{latency['max'] / 1000:.1f} ms, p99 {latency['p99'] / 1000:.2f} ms")
    grafted = total(parse(trial.scrape()), "culvert_handovers_total", 'carrier="graft"') / 2
    print(f"{sessions} sessions, {grafted:g} of them grafted: a scrape takes "
          f"{statistics.median(times):.1f} ms (median of {len(times)}; at most {max(times):.1f})")
    state = wait_until(lambda: (state := trial.state())["clients"] == 1 and state, "the page's state")
    expect(state["busiest_clients"][0]["sessions"] >= sessions, f"{state['busiest_clients']}")
    expect(statistics.median(times) < MOST_MS, f"over {MOST_MS} ms")
    trial.lab.stop(idle, 60)
    trial.daemon.stop()
