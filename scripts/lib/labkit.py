# SPDX-License-Identifier: BSD-2-Clause
"""The lab, culvert in it, and real programs around it.

Every process started here is ended by its own pid, and the lab is taken down, when the Lab object
is closed; handle_signals() turns SIGNALS into an exception so that this happens then too.
If this process is killed, a Guard takes the lab down. If the guard is killed too, the next
`scripts/lab up` does, because the lab's record names its owner.
"""

import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RELAY = "10.0.1.2"
SERVER = "10.0.2.2"
# The signals that end a run: the lab goes first.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SLOW = int(os.environ.get("CULVERT_TEST_SLOW", "1"))  # an emulated machine: how much longer to wait
ENGINES = ("copy", "splice", "sockmap", "auto")

HTTP_PORT = 80
IPERF_PORT = 5201
DNS_PORT = 53
REDIS_PORT = 6379
SMALL_FILES = 16
SMALL_SIZE = 1000

# nginx's temporary files are in {home}.
NGINX_PATHS = """
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
"""
NGINX_CONF = """
daemon off;
pid {home}/nginx.pid;
error_log {home}/nginx.log;
worker_processes 2;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 100000000;
    open_file_cache max=100;
    client_max_body_size 0;
""" + NGINX_PATHS + """
    server {{
        listen {server}:{port};
        {listen_ipv6}
        root {home}/www;
        location /upload/ {{ dav_methods PUT; }}
    }}
}}
"""


LIBC = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """Something did not work; the text is for the user."""


def expect(condition, what):
    """For tests: WHAT is wrong unless CONDITION holds."""
    if not condition:
        raise LabError(what)


def call(name, *arguments):
    """A function of the C library that returns 0, or fails."""
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter(namespace):
    """Moves this thread, and programs that it starts from now on, into NAMESPACE."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        call("setns", file.fileno(), 0x40000000)  # CLONE_NEWNET


@contextlib.contextmanager
def inside(namespace):
    with open("/proc/thread-self/ns/net", "rb") as before:
        enter(namespace)
        try:
            yield
        finally:
            call("setns", before.fileno(), 0x40000000)


def place(address, port):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS came: args[0]. It ends pytest, too."""


def handle_signals():
    def interrupt(number, _frame):
        raise Interrupted(number)

    for number in SIGNALS:
        signal.signal(number, interrupt)


def wait_until(condition, what, seconds=10.0):
    """Polls CONDITION until its answer is true, and returns the answer.  After SECONDS in vain, the
    error has WHAT: a text, or a function that makes the text then."""
    deadline = time.monotonic() + seconds * SLOW
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            told = what() if callable(what) else what
            raise LabError(f"waited {seconds * SLOW:g} s in vain: {told}")
        time.sleep(0.01)


def tail(path, lines=15):
    """The end of a log, or the beginning of a sanitizer's report in it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.readlines()
    except OSError as error:
        return f"({error})\n"
    for number, line in enumerate(text):
        if "Sanitizer:" in line or "runtime error:" in line:
            return "".join(text[number:number + 2 * lines])
    return "".join(text[-lines:])


def call_of(module, function):
    """The command that calls FUNCTION of MODULE, which is of tests/flow, in a process of its own."""
    return ("env", f"PYTHONPATH={':'.join(sys.path)}", sys.executable, "-B", "-c",
            f"import {module}; {module}.{function}()")


def sha256_of_stream(stream):
    """The digest in hexadecimal of the bytes of STREAM, and their number."""
    digest, size = hashlib.sha256(), 0
    while block := stream.read(1 << 20):
        digest.update(block)
        size += len(block)
    return digest.hexdigest(), size


def sha256_of_file(path):
    with open(path, "rb") as file:
        return sha256_of_stream(file)[0]


def write_random(path, size):
    """A file of SIZE bytes that nothing can compress or guess; returns its digest."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        while size > 0:
            block = os.urandom(min(size, 1 << 20))
            digest.update(block)
            file.write(block)
            size -= len(block)
    return digest.hexdigest()


LISTENING = {"tcp": "0A", "udp": "07"}


def is_listening(pid, port, protocol="tcp"):
    """Whether something listens on PORT in the network namespace of PID."""
    for table in (protocol, f"{protocol}6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        if any(row[3] == LISTENING[protocol] and int(row[1].rsplit(":", 1)[1], 16) == port for row in rows):
            return True
    return False


def free_bytes(folder):
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def choose_folder():
    """The place of files: memory if there is plenty, so that no disk takes part in a
    measurement; not a small /tmp, as a /tmp in memory is."""
    if free_bytes("/dev/shm") >= 2 << 30:
        return "/dev/shm"
    usual = tempfile.gettempdir()
    if free_bytes(usual) < 1 << 30 and free_bytes("/var/tmp") > free_bytes(usual):
        return "/var/tmp"
    return usual


def has_ipv6():
    return os.path.isdir("/proc/sys/net/ipv6")


class Guard:
    """A process of its own that runs COMMAND if this one ends without dismiss(): by SIGKILL."""

    # The pipe ends with this process: nothing that it starts inherits the other end.
    _SCRIPT = 'read -r word || exec "$@"'

    def __init__(self, command, environment):
        self._process = subprocess.Popen(
            ["sh", "-c", self._SCRIPT, "guard", *command], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True)

    def dismiss(self):
        if self._process.poll() is None:
            try:
                self._process.stdin.write(b"done\n")
                self._process.stdin.close()
            except OSError:
                pass  # it was killed
        self._process.wait()


def path_options(rtt, loss, seed):
    """Those of `scripts/lab up`; see Lab."""
    if rtt is None and loss is None:
        return []
    pairs = (("--rtt", rtt or (0, 0)), ("--loss", loss or (0, 0)))
    return [word for option, (client, server) in pairs
            for word in (option, f"{client:f},{server:f}")] + ["--seed", str(seed)]


class Lab:
    """The lab (scripts/lab) under a name of its own, and the programs inside.

    LOOPBACK: one namespace plays client, relay and server. TWO_RELAYS: there is a relay2, too.
    BGP: so many relays, between routers with bird2.
    RTT, LOSS: pairs, of the client's leg and the server's, in milliseconds and in per cent each
    way: either makes paths of both. SEED: of the losses.
    """

    def __init__(self, loopback=False, two_relays=False, bgp=0, rtt=None, loss=None, seed=1):
        self.home = tempfile.mkdtemp(prefix="culvert-lab.", dir=choose_folder())
        self.name = "cvl-" + self.home.rpartition(".")[2]
        # The daemon gives up root and nginx does too: both must be able to reach their files.
        os.chmod(self.home, 0o755)
        self.keep = False
        self.loopback = loopback
        self.two_relays = two_relays
        self.bgp = bgp
        self._paths = path_options(rtt, loss, seed)
        self._is_up = False
        self._environment = dict(os.environ, CULVERT_LAB=self.name, LC_ALL="C")
        self._script = os.path.join(TOP, "scripts", "lab")
        self._processes, self._mounts = [], []
        self._numbers = itertools.count(1)  # of logs; several threads may start programs
        self._guard = None

    def __enter__(self):
        try:
            self._guard = Guard((self._script, "down", "--force"), self._environment)
            # Interrupted half-way, it must be taken down; if it failed, it has cleaned up itself.
            self._is_up = True
            self._call("up", *["--loopback"] if self.loopback else [],
                       *["--relays", "2"] if self.two_relays else [],
                       *["--relays", str(self.bgp), "--bgp"] if self.bgp else [], *self._paths,
                       "--owner", str(os.getpid()), "--files", self.home)
        except BaseException as error:
            self._is_up = not isinstance(error, LabError)
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _call(self, command, *options):
        result = subprocess.run([self._script, command, *options], env=self._environment,
                                text=True, capture_output=True, check=False,
                                stdin=subprocess.DEVNULL, start_new_session=True)
        if result.returncode != 0:
            raise LabError(f"scripts/lab {command}: {(result.stdout + result.stderr).strip()}")
        return result.stdout

    def close(self):
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
        for process in reversed(self._processes):
            self.stop(process)
        for place in self._mounts:
            subprocess.run(["umount", "-l", place], check=False)
        try:
            if self._is_up:
                # Processes that have left their session but are still inside are ours as well.
                self._call(*("keep",) if self.keep else ("down", "--force"))
        finally:
            if not self.keep:
                shutil.rmtree(self.home, ignore_errors=True)
            if self._guard:
                self._guard.dismiss()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def path(self, name):
        return os.path.join(self.home, name)

    def write(self, name, text):
        """A file of the lab, with TEXT in it; returns its path."""
        with open(self.path(name), "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return self.path(name)

    def mount_bpf(self, name="bpf"):
        """A BPF file system of the lab's own; returns its path."""
        os.mkdir(self.path(name))
        subprocess.run(["mount", "-t", "bpf", "bpf", self.path(name)], check=True)
        self._mounts.append(self.path(name))
        return self.path(name)

    def path_counts(self, path):
        """{device of PATH, path1 or path2: {what: how many of the frames that came in there}}, as
        of half a second ago."""
        name = f"/run/culvert-lab/{self.name}/{self.name}-{path}.counts"
        with open(name, encoding="ascii") as file:
            rows = [line.removeprefix("from ").strip().split(": ") for line in file]
        return {device: {what: int(count) for count, what in
                         (one.split(" ", 1) for one in text.split(", "))} for device, text in rows}

    def _way_into(self, namespace):
        """The begin of a command that is to run in NAMESPACE."""
        return self._script, "exec", namespace

    def start(self, namespace, *command, **options):
        """Starts COMMAND in NAMESPACE; the process has its log file's path in `.log`.

        The process has a session of its own: Ctrl-C reaches the caller alone, which then stops it.
        """
        log = self.path(f"{next(self._numbers):03d}-{os.path.basename(command[0])}.log")
        with open(log, "wb") as output:
            options.setdefault("stdout", output)
            options.setdefault("stderr", output)
            options.setdefault("stdin", subprocess.DEVNULL)
            process = subprocess.Popen([*self._way_into(namespace), *command],
                                       env=self._environment, start_new_session=True, **options)
        process.log = log
        process.title = os.path.basename(command[0])
        self._processes.append(process)
        return process

    def finish(self, process, seconds):
        """Waits for PROCESS to end by itself, successfully."""
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.stop(process)
            raise LabError(f"{process.title} did not end within {seconds} s:\n"
                           f"{tail(process.log)}") from None
        self._processes.remove(process)
        if code != 0:
            raise LabError(f"{process.title} ended with {code}:\n{tail(process.log)}")

    def run(self, namespace, *command):
        """The output in NAMESPACE of COMMAND, which soon ends."""
        return self._call("exec", namespace, *command)

    def stop(self, process, seconds=10):
        """Ends PROCESS with TERM, then KILL; returns its exit code, None if KILL was needed.

        Children that it has left behind in its session end with it.
        """
        if process in self._processes:
            self._processes.remove(process)
        if process.poll() is None:
            process.terminate()
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return code

    def start_server(self, namespace, port, *command, protocol="tcp", **options):
        """Starts COMMAND and waits until it listens on PORT."""
        process = self.start(namespace, *command, **options)

        def is_up():
            if process.poll() is not None:
                raise LabError(f"{process.title} did not start:\n{tail(process.log)}")
            return is_listening(process.pid, port, protocol)

        wait_until(is_up, f"{process.title} to listen on port {port}")
        return process

    def inside(self, machine):
        """Sockets that this thread makes meanwhile are MACHINE's."""
        return inside(f"{self.name}-{'loopback' if self.loopback else machine}")

    def socket(self, machine, address, kind=socket.SOCK_STREAM):
        """A socket of MACHINE's, of the family of ADDRESS."""
        with self.inside(machine):
            return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)

    def start_echo(self, namespace, port, *name):
        return self.start_server(namespace, port, sys.executable, "-B",
                                 os.path.join(TOP, "tests/flow/echo_server.py"), str(port), *name)

    def start_nginx(self, big_size):
        """nginx with www/big, www/small/0.. and a place for uploads; returns the digest of big."""
        for folder, mode in (("www/small", 0o755), ("www/upload", 0o777)):
            os.makedirs(self.path(folder))
            os.chmod(self.path(folder), mode)
        digest = write_random(self.path("www/big"), big_size)
        for number in range(SMALL_FILES):
            write_random(self.path(f"www/small/{number}"), SMALL_SIZE)
        self.write("nginx.conf", NGINX_CONF.format(
            home=self.home, server=SERVER, port=HTTP_PORT,
            listen_ipv6=f"listen [fd00:2::2]:{HTTP_PORT};" if has_ipv6() else ""))
        self.start_server("server", HTTP_PORT, "nginx", "-p", self.home, "-e",
                          self.path("nginx.log"), "-c", self.path("nginx.conf"))
        return digest

    def start_iperf3(self, *options):
        self.start_server("server", IPERF_PORT, "iperf3", "--server", "--port", str(IPERF_PORT),
                          *options)

    def download(self, url, seconds=120):
        """Fetches URL with curl in the client namespace; returns digest and size."""
        curl = self.start("client", "curl", "--silent", "--show-error", "--fail", "--globoff",
                          "--max-time", str(seconds), url, stdout=subprocess.PIPE)
        with curl.stdout:
            result = sha256_of_stream(curl.stdout)
        self.finish(curl, 10)
        return result

    def start_iperf3_client(self, address, port, seconds, *options):
        report = self.path(f"{next(self._numbers):03d}-iperf3.json")
        with open(report, "wb") as output:
            process = self.start("client", "iperf3", "--client", address, "--port", str(port),
                                 "--time", str(seconds), "--json", *options, stdout=output)
        process.report = report
        return process

    def finish_iperf3_client(self, process, seconds):
        """The totals of PROCESS, after it ended by itself; fails if PROCESS saw an error."""
        try:
            self.finish(process, seconds)
        finally:
            with open(process.report, encoding="utf-8") as file:
                text = file.read()
            os.unlink(process.report)
        report = json.loads(text)
        if "error" in report:
            raise LabError(f"iperf3: {report['error']}")
        return report["end"]


class Daemon:
    """culvert in the relay namespace, or in another one."""

    # All ways are near in the lab, also while a busy machine measures long round trips.
    NEAR = ("--graft-rtt", "0")

    def __init__(self, lab, program, engine, forwards, *options, namespace="relay", near=NEAR):
        self.lab = lab
        self.namespace = namespace
        self.program = os.path.abspath(program)
        self.engine = engine
        # Each has a folder of its own: the daemon cannot remove its socket once it is not root.
        self.control = os.path.join(tempfile.mkdtemp(prefix="control.", dir=lab.home), "socket")
        os.chmod(os.path.dirname(self.control), 0o755)
        # Nothing stays behind, unless it is to: the last of two options counts.
        self._arguments = ["--graft-pins", "none", *near, *options,
                           *(address for forward in forwards for address in forward)]
        self.start()

    def call(self, *options):
        return (self.program, "run", "--engine", self.engine, "--control", self.control,
                *self._arguments, *options)

    def start(self, *options, by=(), fds=()):
        """BY: the begin of a command that becomes it, and keeps FDS."""
        self.process = self.lab.start(self.namespace, *by, *self.call(*options), pass_fds=fds)
        wait_until(self._is_ready, f"culvert --engine {self.engine} to be ready", 60)

    def kill(self):
        """SIGKILL; then another one is started."""
        self.die()
        self.start()

    def die(self):
        """As by SIGKILL."""
        self.process.kill()
        self.lab.stop(self.process)

    def restart(self):
        expect(self.stop() == 0, "the daemon did not stop in order")
        self.start()

    def take_over(self, *options):
        """Another one takes this one's place. Returns the process of before, which ends by itself
        when it has no sessions left."""
        before = self.process
        self.start("--take-over", self.control, *options)
        return before

    def log(self):
        with open(self.process.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def ended(self):
        """The lines of `--session-log -`."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def _is_ready(self):
        text = self.log()
        # On a busy machine it is ready before it knows its carriers.
        if "culvert: ready" in text:
            return "kernel path is tried" not in text or "kernel path was tried" in text
        if self.process.poll() is not None:
            raise LabError(f"culvert --engine {self.engine} ended with {self.process.returncode}:\n"
                           f"{tail(self.process.log)}")
        return False

    @property
    def pid(self):
        return self.process.pid

    def command(self, *words):
        """The output of `culvert WORDS`."""
        result = subprocess.run([self.program, *words, "--control", self.control],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20 * SLOW,
                                check=False, text=True, start_new_session=True)
        if result.returncode != 0:
            raise LabError(f"culvert {' '.join(words)} ended with {result.returncode}: "
                           f"{result.stderr.strip()}\n{tail(self.process.log)}")
        return result.stdout

    def ask(self, *words):
        return json.loads(self.command(*words, "--json"))

    def reload(self):
        before = self.ask("status")["reload"]["finished"]
        self.command("reload")
        wait_until(lambda: self.ask("status")["reload"]["finished"] > before, "the reload")

    def busiest_session(self, port):
        """The session on the forward that listens on PORT which moved most bytes, or None."""
        sessions = [session for session in self.ask("sessions")["sessions"]
                    if session["forward"].endswith(f":{port}")]
        return max(sessions, default=None,
                   key=lambda session: sum(flow["bytes"] for flow in session["flows"]))

    def stop(self):
        """Ends it in order; returns its exit code."""
        return self.lab.stop(self.process)


def flow_of(session, direction):
    return next(flow for flow in session["flows"] if flow["direction"] == direction)
