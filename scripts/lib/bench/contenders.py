# SPDX-License-Identifier: BSD-2-Clause
"""The contenders of the benchmark: each one's configurations, its start and its end.

A contender offers configurations for the goal of a row; the benchmark tries them and keeps the
best. Culvert has only one: its defaults. Its other settings take part under names of their own, so
that only figures of peers are the best of several.
"""

import itertools
import os
import resource
import shutil
import time
from dataclasses import dataclass

from bench.rows import BULK, DATAGRAMS, IDLE, KILLED, QUESTIONS
from labkit import RELAY, SERVER, Daemon, LabError, tail
from rivals import CONTROL, OTHERS, SUBJECT

K = 1024
BACKLOG = 16384
# Sessions that a relay must hold in rows other than the idle ones.
PLENTY = 4096
# The delay of a kill: by then the load is measured.
KILL_SECONDS = 0.1
# Descriptors: of a process; those of a relay for other things than sessions and pipes.
DESCRIPTORS = 65536
RESERVE = 512
MAXIMUM_PIPES = 512
# Ports of the one address that sessions are masqueraded with.
MASQUERADED = 64000


@dataclass(frozen=True)
class Forward:
    """From a port of the relay's address to a port of the server's, or of the relay itself."""
    listen: int
    upstream: int
    host: str = SERVER
    protocols: tuple = ("tcp",)

    @property
    def ready(self):
        """The protocol whose port is opened last, and so shows that a relay is up."""
        return self.protocols[-1]


@dataclass(frozen=True)
class Place:
    """All that the start of a contender depends on, but its configuration."""
    lab: object
    culvert: str
    forward: Forward
    sessions: int

    def file(self, suffix):
        return self.lab.path(f"relay-{self.forward.listen}{suffix}")

    def write(self, suffix, text):
        with open(self.file(suffix), "w", encoding="ascii") as file:
            file.write(text)
        return self.file(suffix)


class Contender:
    """One way from client to server. A configuration is a dict; {} has no choice."""

    family = "peer"
    program = None      # the command that must be there
    # The greatest number of sessions of a contender that has a limit, and the reason.
    most_sessions = None
    why_not_more = ""
    alone = False       # packets of others would cost more while it runs

    def __init__(self, name):
        self.name = name

    def why_missing(self):
        """None, or the reason why the contender cannot take part."""
        if self.program and not shutil.which(self.program):
            return f"{self.program} is not installed"
        return None

    def configs(self, _goal, _cpus):
        """The configurations worth trying, the best known one without trying first."""
        return [{}]

    def describe(self, config):
        return ", ".join(f"{key} {value}" for key, value in config.items()) or "defaults"

    def sessions_per_process(self, descriptors):
        """The number of sessions that one instance can hold with so many descriptors."""
        return (descriptors - RESERVE) // 2

    def start(self, place, config):
        """Starts it in the lab and waits until it accepts connections."""
        raise NotImplementedError

    def stop(self, place):
        """Removes its leftovers from the lab, once its processes have ended."""


class Direct(Contender):
    family = "direct"

    def describe(self, _config):
        return "no relay in between"

    def start(self, _place, _config):
        pass


class Culvert(Contender):
    """PROGRAM: another daemon than the one to measure."""

    family = "culvert"

    def __init__(self, name, engine, program=None):
        super().__init__(name)
        self.engine, self.program = engine, program
        self.alone = engine in ("auto", "graft")  # its programs see each packet of an interface

    def configs(self, goal, _cpus):
        return [{KILLED: {"pins": True}, QUESTIONS: {"responses": True}}.get(goal, {})]

    def describe(self, config):
        return f"--engine {self.engine}" + (" --graft-pins" if "pins" in config else "") + \
            (" --responses 1" if "responses" in config else "") + \
            (f" of {self.program}" if self.program else "")

    def sessions_per_process(self, descriptors):
        # culvert's default for --max-sessions is the other limit.
        return min(super().sessions_per_process(descriptors), 16000)

    def start(self, place, config):
        forward = place.forward
        more = ["--graft-pins", place.lab.bpf_folder()] if "pins" in config else []
        more += ["--responses", "1"] if "responses" in config else []
        return Daemon(place.lab, self.program or place.culvert, self.engine,
                      [(f"{RELAY}:{forward.listen}{'/udp' if protocol == 'udp' else ''}",
                        f"{forward.host}:{forward.upstream}") for protocol in forward.protocols],
                      *more,
                      # all connections come from one address
                      "--max-sessions-per-client", "16384", near=())


# The kernel's own way. The output chain is for a lab of one namespace.
NFT_RULES = """\
table ip {table} {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        {rules}
    }}
    chain output {{
        type nat hook output priority -100
        {rules}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        ct status dnat masquerade
    }}
}}
"""
# A port can be used again after a second, as a socket's with tcp_tw_reuse in scripts/lab; so can
# that of a question and its answer, or the table fills. Flows that go on rest longer.
NFT_TIMEOUTS = {"tcp_timeout_time_wait": 1, "udp_timeout": 1, "udp_timeout_stream": 10}


def nft_rules(forward):
    rules = "\n        ".join(f"ip daddr {RELAY} {protocol} dport {forward.listen} "
                              f"dnat to {forward.host}:{forward.upstream}"
                              for protocol in forward.protocols)
    return NFT_RULES.format(table=nft_table(forward), rules=rules)


def nft_table(forward):
    return f"bench{forward.listen}"


class NftDnat(Contender):
    """DNAT and masquerade: without its rules there is no connection tracking in the lab."""

    family = "kernel"   # no relay, so nobody's best peer
    program = "nft"
    alone = True

    def describe(self, _config):
        return "nftables: dnat, masquerade"

    def sessions_per_process(self, _descriptors):
        return MASQUERADED

    def start(self, place, _config):
        rules = place.write(".nft", nft_rules(place.forward))
        timeouts = "".join(f" && echo {seconds} >/proc/sys/net/netfilter/nf_conntrack_{name}"
                           for name, seconds in NFT_TIMEOUTS.items())
        place.lab.run("relay", "sh", "-c", f"nft -f {rules}{timeouts}")

    def stop(self, place):
        place.lab.run("relay", self.program, "delete", "table", "ip", nft_table(place.forward))


HAPROXY_CONF = """\
global
    nbthread {nbthread}
    maxconn {sessions}
    tune.bufsize {bufsize}
{tuning}
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
{options}
listen relay
    bind {relay}:{listen} backlog {backlog}
    server upstream {server}:{upstream}
"""


def haproxy_conf(config, forward, sessions):
    tuning = [f"    maxpipes {MAXIMUM_PIPES}"] if "splice" in config else []
    tuning += [f"    tune.pipesize {config['pipesize']}"] if config.get("pipesize") else []
    options = {None: (), "auto": ("splice-auto",),
               "always": ("splice-request", "splice-response")}[config.get("splice")]
    return HAPROXY_CONF.format(nbthread=config["nbthread"], bufsize=config["bufsize"],
                               sessions=sessions, tuning="\n".join(tuning),
                               options="\n".join(f"    option {option}" for option in options),
                               relay=RELAY, server=forward.host, listen=forward.listen,
                               upstream=forward.upstream, backlog=BACKLOG)


def combinations(**choices):
    """All configurations that take one of the values for each key."""
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]


def worker_counts(cpus):
    """The numbers of workers to try: as many as there are CPUs, then one or two."""
    return list(dict.fromkeys((cpus, *(n for n in (2, 1) if n <= cpus))))


class Haproxy(Contender):
    program = "haproxy"

    def configs(self, goal, cpus):
        sizes = {BULK: (64 * K, 256 * K, 16 * K), IDLE: (16 * K, 4 * K)}
        return combinations(nbthread=worker_counts(cpus),
                            bufsize=sizes.get(goal, (16 * K, 64 * K)))

    def start(self, place, config):
        conf = place.write(".cfg", haproxy_conf(config, place.forward, place.sessions))
        place.lab.start_server("relay", place.forward.listen, self.program, "-db", "-f", conf)


class HaproxySplice(Haproxy):
    def configs(self, goal, cpus):
        return combinations(nbthread=worker_counts(cpus), bufsize=[16 * K],
                            splice=("always", "auto") if goal == BULK else ("auto", "always"),
                            pipesize=(512 * K, 256 * K, None) if goal == BULK else (None,))

    def describe(self, config):
        return super().describe({key: value for key, value in config.items() if value})

    def sessions_per_process(self, descriptors):
        return (descriptors - RESERVE - 2 * MAXIMUM_PIPES) // 2


NGINX_STREAM = "/usr/lib/nginx/modules/ngx_stream_module.so"
NGINX_CONF = """\
load_module {stream};
daemon off;
pid {home}.pid;
error_log {home}.errors;
worker_processes {workers};
events {{ worker_connections {connections}; }}
stream {{
{servers}
}}
"""
NGINX_SERVER = """\
    server {{
        listen {relay}:{listen}{options}{reuseport};
        proxy_pass {server}:{upstream};
        proxy_buffer_size {buffer};
        proxy_timeout {timeout};{responses}
        proxy_connect_timeout 5s;
    }}"""


def nginx_conf(config, forward, sessions, home):
    servers = [NGINX_SERVER.format(
        relay=RELAY, server=forward.host, listen=forward.listen, upstream=forward.upstream,
        options={"tcp": f" backlog={BACKLOG}", "udp": " udp"}[protocol],
        reuseport=" reuseport" if config["worker_processes"] > 1 else "",
        buffer=config["proxy_buffer_size"], timeout={"tcp": "1h", "udp": "10s"}[protocol],
        responses=" proxy_responses 1;" if "proxy_responses" in config else "")
        for protocol in forward.protocols]
    return NGINX_CONF.format(stream=NGINX_STREAM, home=home, workers=config["worker_processes"],
                             connections=2 * sessions + 64, servers="\n".join(servers))


class Nginx(Contender):
    program = "nginx"

    def why_missing(self):
        if not os.path.exists(NGINX_STREAM):
            return "nginx has no stream module (Debian: libnginx-mod-stream)"
        return super().why_missing()

    def configs(self, goal, cpus):
        sizes = {BULK: (64 * K, 256 * K, 16 * K), IDLE: (16 * K, 4 * K), DATAGRAMS: (64 * K,),
                 QUESTIONS: (16 * K,)}
        found = combinations(worker_processes=worker_counts(cpus),
                             proxy_buffer_size=sizes.get(goal, (16 * K, 64 * K)))
        return [{**one, "proxy_responses": 1} for one in found] if goal == QUESTIONS else found

    def start(self, place, config):
        conf = place.write(".conf", nginx_conf(config, place.forward, place.sessions,
                                               place.file(".nginx")))
        place.lab.start_server("relay", place.forward.listen, self.program, "-e",
                               place.file(".nginx.errors"), "-c", conf,
                               protocol=place.forward.ready)


def socat_command(config, forward, protocol="tcp"):
    if protocol == "udp":
        # LISTEN: a process for each client. RECVFROM: for each datagram, until -t after it
        return ["socat", "-b", str(64 * K), "-T", "10", "-t", "0.05",
                f"{config['address']}:{forward.listen},bind={RELAY},fork,reuseaddr",
                f"UDP4:{forward.host}:{forward.upstream}"]
    nodelay = ",nodelay" if config.get("nodelay") else ""
    # -t: the wait for the other direction after one has ended; 0.5 s cuts slow answers off
    return ["socat", "-b", str(config.get("buffer", 64 * K)), "-t", "30",
            f"TCP4-LISTEN:{forward.listen},bind={RELAY},fork,reuseaddr,backlog={BACKLOG}{nodelay}",
            f"TCP4:{forward.host}:{forward.upstream}{nodelay}"]


class Forking(Contender):
    """A process for each session. A few sessions tell the cost of one, and leave process
    identifiers to others."""

    most_sessions = 1000
    why_not_more = "it needs a process for each session"


class Socat(Forking):
    program = "socat"

    def configs(self, goal, _cpus):
        if goal == IDLE:
            return combinations(buffer=(8 * K, 1 * K), nodelay=(True,))
        if goal in (DATAGRAMS, QUESTIONS):
            return combinations(address=("UDP4-LISTEN",) if goal == DATAGRAMS else
                                ("UDP4-LISTEN", "UDP4-RECVFROM"))
        return combinations(buffer=(64 * K, 256 * K, 8 * K), nodelay=(True, False))

    def start(self, place, config):
        for protocol in place.forward.protocols:
            place.lab.start_server("relay", place.forward.listen, protocol=protocol,
                                   *socat_command(config, place.forward, protocol))


class Rinetd(Contender):
    program = "rinetd"
    most_sessions = 4000
    why_not_more = "its queue of new connections holds 128, and of more at a time many are lost"

    def configs(self, goal, _cpus):
        return [{"timeout": {DATAGRAMS: 10, QUESTIONS: 1}[goal]}] \
            if goal in (DATAGRAMS, QUESTIONS) else [{}]

    def start(self, place, config):
        forward = place.forward
        timeout = f" [timeout={config['timeout']}]" if config else ""
        conf = place.write(".conf", "".join(
            f"{RELAY} {forward.listen}/{protocol} {forward.host} {forward.upstream}/{protocol}"
            f"{timeout if protocol == 'udp' else ''}\n" for protocol in forward.protocols))
        place.lab.start_server("relay", forward.listen, self.program, "-f", "-c", conf,
                               protocol=forward.ready)


def redir_command(config, forward):
    # Not "-l none", which lets all messages through: two for each connection, to the console.
    return ["redir", "-n", "-l", "err", f"--bufsize={config['bufsize']}",
            f"{RELAY}:{forward.listen}", f"{forward.host}:{forward.upstream}"]


class Redir(Forking):
    program = "redir"

    def configs(self, goal, _cpus):
        return combinations(bufsize=(4 * K,) if goal == IDLE else (64 * K, 256 * K, 4 * K))

    def start(self, place, config):
        place.lab.start_server("relay", place.forward.listen,
                               *redir_command(config, place.forward))


CONTENDERS = {contender.name: contender for contender in (
    Direct("direct"),
    NftDnat("nft-dnat"),
    Culvert("auto", "auto"),
    Culvert("graft", "graft"),
    Culvert("sockmap", "sockmap"),
    Culvert("splice", "splice"),
    Culvert("copy", "copy"),
    Haproxy("haproxy"),
    HaproxySplice("haproxy-splice"),
    Nginx("nginx"),
    Socat("socat"),
    Rinetd("rinetd"),
    Redir("redir"),
    # The subject once more: its ratio to itself shows the size of differences without a cause.
    Culvert(CONTROL, SUBJECT),
)}


def add_other(program):
    """Adds the contenders of another daemon, of --against."""
    CONTENDERS.update({name: Culvert(name, engine, program) for engine, name in OTHERS.items()})


def raise_descriptor_limit():
    """Makes room for many sessions, as far as allowed; returns descriptors a process."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, max(hard, DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Relay:
    """A contender that runs: one or more instances, each with a forward of its own.

    CPU: the meter of its CPU time (see measuring.CpuMeters), or None. The relay closes its meter.
    """

    def __init__(self, lab, contender, config, forwards, cpu):
        self.contender, self.config, self.forwards, self.cpu = contender, config, forwards, cpu
        self._lab = lab
        self._processes, self._daemons, self._places = [], [], []

    def start(self, culvert, sessions):
        """CULVERT: the program. SESSIONS: each instance must be able to hold so many."""
        try:
            with self._lab.watched(self.cpu and self.cpu.enter, self._processes.append):
                for forward in self.forwards:
                    place = Place(self._lab, culvert, forward, sessions)
                    started = self.contender.start(place, self.config)
                    self._places.append(place)
                    if isinstance(started, Daemon):
                        self._daemons.append(started)
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self):
        """Kills the daemon, and starts another one at once."""
        time.sleep(KILL_SECONDS)
        for daemon in self._daemons:
            self._processes.remove(daemon.process)
            with self._lab.watched(self.cpu and self.cpu.enter, self._processes.append):
                daemon.kill()

    @property
    def is_direct(self):
        return self.contender.family == "direct"

    @property
    def targets(self):
        """(address, port) pairs that a client connects to."""
        if self.is_direct:
            return [(forward.host, forward.upstream) for forward in self.forwards]
        return [(RELAY, forward.listen) for forward in self.forwards]

    @property
    def pids(self):
        """The pids of its first processes, each the leader of a session."""
        return [process.pid for process in self._processes]

    def check(self):
        """Raises LabError if one of its processes has ended."""
        for process in self._processes:
            if process.poll() is not None:
                raise LabError(f"{process.title} ended with {process.returncode}:\n"
                               f"{tail(process.log)}")

    def carriers(self):
        """{carrier: bytes} so far, or None if the relay is not culvert."""
        if not self._daemons:
            return None
        totals = {}
        for daemon in self._daemons:
            for row in daemon.ask("status")["carriers"]:
                totals[row["carrier"]] = totals.get(row["carrier"], 0) + row["bytes"]
        return totals

    def stop(self):
        for process in reversed(self._processes):
            self._lab.stop(process)
        for place in self._places:
            self.contender.stop(place)
        self._processes.clear()
        self._daemons.clear()
        self._places.clear()
        if self.cpu:
            self.cpu.close()


def one_line(error):
    return " ".join(str(error).split())[:400]


class Relays:
    """The relays of a row, which run at the same time, by name; a dead one is started again.

    STARTERS: {name: function that starts the relay and returns it}. ALONE: the names of relays that
    run only from get() to rest(), so that no packet of the others passes their programs.
    """

    def __init__(self, starters, alone=()):
        self._starters = starters
        self._alone = alone
        self._running = {}
        self._failed = {}

    def __enter__(self):
        for name in self._starters:
            self._start(name)
        return self

    def __exit__(self, *_):
        for relay in self._running.values():
            relay.stop()
        self._running.clear()

    def _start(self, name):
        try:
            self._running[name] = self._starters[name]()
        except LabError as error:
            self._failed[name] = f"did not start: {one_line(error)}"

    def restart(self, names):
        """Starts the relays of NAMES anew: luck that a process is born with must not last for all
        rounds."""
        for name in names:
            if relay := self._running.pop(name, None):
                relay.stop()
            self._failed.pop(name, None)
            if name not in self._alone:
                self._start(name)

    def rest(self):
        for name in self._alone:
            if relay := self._running.pop(name, None):
                relay.stop()

    def get(self, name):
        """The relay NAME, which runs. Raises LabError if it cannot be started."""
        if name in self._failed:
            raise LabError(self._failed[name])
        relay = self._running.pop(name, None)
        try:
            if relay:
                relay.check()
        except LabError:
            relay.stop()
            relay = None
        self._running[name] = relay or self._starters[name]()
        return self._running[name]
