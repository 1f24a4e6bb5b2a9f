# SPDX-License-Identifier: BSD-2-Clause
"""rinetd is stopped, and one command takes its place: `culvert run -c` on the same file.

The real rinetd runs on a rinetd.conf with rules of every kind. From many client addresses each of
its ports is tried: who is let in, what comes from the server, and which address the server sees.
Then culvert runs on the same file, on each engine, and on what `culvert convert` makes of it, and
is tried in the same way, and on another file that becomes this one with a SIGHUP. Nothing may
differ. What else is read, as files of oi: unit/test_rinetd.
"""

import json
import os
import selectors
import signal
import socket
import sys

import pytest
from labkit import Daemon, Lab, call_of, expect, tail, wait_until

pytestmark = pytest.mark.needs("ip", "rinetd")
TOKEN = b"0123456789abcdef" * 4
PATIENCE = 10

# Each forwarding rule has the server port that says who it is.
RINETD_CONF = """\
# a rinetd.conf with everything that can be in one
#
allow 127.*
allow 2001:db8:*
deny 127.0.0.1?
deny 127.66.6.*
  deny 2001:db8:*:bad

# bindadress  bindport  connectaddress  connectport  options...
pidlogfile {home}/rinetd.pid
logfile {home}/rinetd.log
127.0.0.1     9000      127.0.0.1       7000      [timeout=72000]
127.0.0.1\t9001/tcp\t127.0.0.1\t7001/tcp [ src = 127.0.0.9 , timeout=0 ]  # and a comment
deny 127.0.0.2
allow 127.0.?.*
deny *.7.7
0             9002      127.0.0.1       7002\r
allow 127.1?.*
allow 127.2.0.0
deny 127.10.0.1
127.0.0.1     9003      localhost       7000
allow 127.0.0.*
127.0.0.1     9006      127.0.0.1       7000
allow 10.*
::1           9004      127.0.0.1       7001
allow 2001:db8:1:*
deny 2001:db8:1::3
::            9005      127.0.0.1       7002
127.0.0.1     sip       ::1             7003
deny 127.0.0.3
"""

# Before the reload, and one that changes nothing
FIRST_CONF = """\
allow 10.*
pidlogfile {home}/rinetd.pid
logfile {home}/rinetd.log
127.0.0.1     9000      127.0.0.1       7003
127.0.0.1     9007      127.0.0.1       7000
"""
BAD_CONF = RINETD_CONF + "0.0.0.0 53/udp 127.0.0.1 53\n"

INET_CLIENTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9", "127.0.0.10",
                "127.0.0.14", "127.0.0.19", "127.0.0.20", "127.0.0.100", "127.0.0.101",
                "127.0.7.7", "127.0.7.8", "127.0.10.1", "127.1.0.1", "127.2.0.0", "127.2.0.1",
                "127.10.0.1", "127.10.0.2", "127.19.7.7", "127.100.0.1", "127.66.6.1",
                "127.66.7.1", "127.255.255.254"]
INET6_CLIENTS = ["::1", "2001:db8::1", "2001:db8::bad", "2001:db8:1::1", "2001:db8:1::3",
                 "2001:db8:1::bad", "2001:db8:1:2:3:4:5:6", "2001:db9::1"]
TARGETS = [("127.0.0.1", port) for port in (9000, 9001, 9002, 9003, 9005, 9006, 5060)]
TARGETS += [("::1", 9004), ("::1", 9005)]
SERVER_PORTS = (("127.0.0.1", 7000), ("::1", 7000), ("127.0.0.1", 7001), ("127.0.0.1", 7002),
                ("::1", 7003))


def for_each_case(verdict):
    """VERDICT(client, address, port) of all of them, by name."""
    return {f"{client} to {address} port {port}": verdict(client, address, port)
            for address, port in TARGETS
            for client in (INET6_CLIENTS if ":" in address else INET_CLIENTS)}


# --- what runs inside the namespace

def serve():
    """Tells each client who it has reached and as whom, and then what it says."""
    selector = selectors.DefaultSelector()
    for address, port in SERVER_PORTS:
        listener = socket.create_server((address, port), backlog=128,
                                        family=socket.AF_INET6 if ":" in address
                                        else socket.AF_INET)
        selector.register(listener, selectors.EVENT_READ, port)
    while True:
        for key, _ in selector.select():
            if key.data:
                connection, peer = key.fileobj.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(f"server {key.data} to {peer[0]}\n".encode())
                selector.register(connection, selectors.EVENT_READ)
                continue
            try:
                data = key.fileobj.recv(4096)
                key.fileobj.sendall(data)
            except OSError:
                data = b""
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def try_one(client, address, port):
    """What the server says, or why there is nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(PATIENCE)
        connection.bind((client, 0))
        try:
            connection.connect((address, port))
            connection.sendall(TOKEN)
            said = connection.makefile("rb")
            answer = said.readline()
            if not answer:
                return "refused"
            if said.read(len(TOKEN)) != TOKEN:
                return "broken"
            return answer.decode().strip()
        except ConnectionRefusedError:
            return "nobody listens"
        except (ConnectionResetError, BrokenPipeError):
            return "refused"


def try_all():
    json.dump(for_each_case(try_one), sys.stdout)


# --- what runs outside

class Replacement:
    """The lab with its servers, and the file that both programs run on."""

    def __init__(self, lab, program):
        self.lab = lab
        self.program = os.path.abspath(program)
        self.file = lab.path("rinetd.conf")
        self.log = lab.path("rinetd.log")
        self.write(self.file, RINETD_CONF)
        for address in INET6_CLIENTS[1:]:
            self.run("ip", "address", "add", f"{address}/128", "dev", "lo", "nodad")
        lab.start_server("server", SERVER_PORTS[-1][1], *call_of("replace_rinetd", "serve"))

    def write(self, path, text):
        os.rename(self.lab.write("new", text.replace("{home}", self.lab.home)), path)

    def run(self, *command):
        return self.lab.run("relay", *command)

    def try_all(self):
        return json.loads(self.run(*call_of("replace_rinetd", "try_all")))

    def with_rinetd(self):
        """What rinetd says twice: its first client it sometimes refuses, whoever that is."""
        process = self.lab.start_server("relay", 5060, "rinetd", "-f", "-c", self.file)
        try:
            before, verdicts = None, self.try_all()
            while verdicts != before:
                before, verdicts = verdicts, self.try_all()
            return verdicts
        finally:
            expect(process.poll() is None, f"rinetd has ended:\n{tail(process.log)}")
            self.lab.stop(process)

    def reload(self, daemon, path, text):
        """Makes TEXT the file, and reloads as rinetd's users do; what became of it."""
        before = daemon.ask("status")["reload"]["finished"]
        self.write(path, text)
        with open(self.lab.path("rinetd.pid"), encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGHUP)
        wait_until(lambda: daemon.ask("status")["reload"]["finished"] > before, "the reload")
        return daemon.ask("status")["reload"]

    def with_reload(self):
        path = self.lab.path("reloaded.conf")
        self.write(path, FIRST_CONF)
        daemon = Daemon(self.lab, self.program, "auto", (), "-c", path, "--probe", "no")
        try:
            result = self.reload(daemon, path, RINETD_CONF)
            expect(result["ok"], f"a good file: {result}")
            result = self.reload(daemon, path, BAD_CONF)
            where = f"{path}:{BAD_CONF.count(chr(10))}: /udp on one side: "
            expect(not result["ok"] and where in result["error"], f"a bad file, {where}: {result}")
            return self.try_all()
        finally:
            daemon.stop()

    def with_culvert(self, engine, file):
        # one trial of the kernel is enough
        probe = "yes" if engine == "auto" and file == self.file else "no"
        with open(self.log, "w", encoding="ascii"):
            pass
        daemon = Daemon(self.lab, self.program, engine, (), "-c", file, "--probe", probe)
        try:
            verdicts = self.try_all()
        finally:
            code = daemon.stop()
        expect(code == 0, f"culvert ended with {code}:\n{tail(daemon.process.log)}")
        self.check_log(verdicts)
        return verdicts

    def check_log(self, verdicts):
        """Each client has its line, and says how it ended."""
        with open(self.log, encoding="ascii") as file:
            ends = [json.loads(line)["end"] for line in file]
        refused = list(verdicts.values()).count("refused")
        expect((len(ends), ends.count("denied")) == (len(verdicts), refused),
               f"the log has {len(ends)} lines, of which {ends.count('denied')} say \"denied\", "
               f"for {len(verdicts)} clients, of which {refused} were")

    def convert(self):
        return self.lab.write("culvert.conf", self.run(self.program, "convert", self.file))


def check_rinetd(verdicts):
    """The comparison would be worth little if all had the same answer."""
    for wanted in ("refused", "server 7000 to 127.0.0.1", "server 7001 to 127.0.0.9",
                   "server 7001 to 127.0.0.1", "server 7002 to 127.0.0.1", "server 7003 to ::1"):
        expect(list(verdicts.values()).count(wanted) >= 2,
               f"with rinetd hardly anybody gets \"{wanted}\": {verdicts}")
    unexpected = {name: text for name, text in verdicts.items() if text in ("broken",
                                                                             "nobody listens")}
    expect(not unexpected, f"with rinetd: {unexpected}")


def compare(verdicts, wanted):
    wrong = [f"{case}: {verdicts[case]}, with rinetd: {text}" for case, text in wanted.items()
             if verdicts[case] != text]
    print(f"# {len(wanted) - len(wrong)} of {len(wanted)} verdicts as with rinetd")
    expect(not wrong, "\n".join(wrong))


@pytest.fixture(scope="module")
def replacement(culvert):
    with Lab(loopback=True) as lab:
        yield Replacement(lab, culvert)


@pytest.fixture(scope="module")
def wanted(replacement):
    verdicts = replacement.with_rinetd()
    check_rinetd(verdicts)
    admitted = sum(text.startswith("server") for text in verdicts.values())
    print(f"# rinetd lets {admitted} of {len(verdicts)} in")
    return verdicts


def test_same_file(replacement, wanted, engine):
    compare(replacement.with_culvert(engine, replacement.file), wanted)


def test_converted(replacement, wanted):
    compare(replacement.with_culvert("auto", replacement.convert()), wanted)


def test_reload(replacement, wanted):
    compare(replacement.with_reload(), wanted)
