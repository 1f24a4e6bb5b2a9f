# SPDX-License-Identifier: BSD-2-Clause
"""The lab as the benchmark needs it: interruptible at any moment, with its servers."""

import os
import signal
import subprocess
from contextlib import contextmanager

from bench_clients import DNSPERF, IPERF3, REDIS, WRK, dns_names
from labkit import (DNS_PORT, REDIS_PORT, RELAY, SERVER, SIGNALS, Interrupted, Lab, LabError, tail,
                    wait_until)


NSD_CONF = """\
server:
    ip-address: {server}@{port}
    username: ""
    pidfile: "{home}/nsd.pid"
    database: ""
    zonesdir: "{home}"
    zonelistfile: "{home}/nsd.zones"
    xfrdfile: "{home}/nsd.xfrd"
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: bench.test
    zonefile: bench.zone
"""
ZONE = "@ 60 SOA ns hostmaster 1 60 60 60 60\n@ 60 NS ns\nns 60 A 10.0.2.2\n"


class Interrupts:
    """Turns the first of SIGNALS into Interrupted; cleaning up is not interrupted again.

    Not while something is half-way that could not be undone: then right after it.
    """

    def __init__(self):
        self._depth = 0
        self._pending = None
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number, _frame):
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        if self._depth:
            self._pending = number
        else:
            raise Interrupted(number)

    @contextmanager
    def postponed(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._pending is not None and not self._depth:
                number, self._pending = self._pending, None
                raise Interrupted(number)


class BenchLab(Lab):
    """The lab; it tells whoever wants to know what is started in it. PATHS: see Lab."""

    def __init__(self, interrupts, loopback=False, **paths):
        super().__init__(loopback, **paths)
        self._interrupts = interrupts
        self._enter = self._started = None

    def start(self, namespace, *command, **options):
        with self._interrupts.postponed():
            process = super().start(namespace, *command, preexec_fn=self._enter, **options)
            if self._started:
                self._started(process)
        return process

    def bpf_folder(self):
        """A BPF file system, which goes with the lab."""
        path = self.path("bpf")
        if not os.path.isdir(path):
            os.mkdir(path)
            subprocess.run(["mount", "-t", "bpf", "-o", "mode=755", "bpf", path], check=True)
        return path

    def close(self):
        if os.path.isdir(self.path("bpf")):
            subprocess.run(["umount", "-l", self.path("bpf")], check=False)
        super().close()

    @contextmanager
    def watched(self, enter, started):
        """Within it, each new process calls ENTER() before anything else, and then the benchmark
        STARTED(process)."""
        self._enter, self._started = enter, started
        try:
            yield
        finally:
            self._enter = self._started = None

    def start_servers(self, tools):
        """Those of load generators that are not culvert-bench."""
        if WRK in tools:
            self.start_nginx(1 << 20)
        if IPERF3 in tools:
            # One that hears nothing more must not keep the next ones waiting; and of several
            # addresses it answers datagrams from any.
            self.start_iperf3("--rcv-timeout", "2000", "--bind", SERVER)
        if REDIS in tools:
            self.start_server("server", REDIS_PORT, "redis-server", "--bind", SERVER, "--port",
                              str(REDIS_PORT), "--save", "", "--protected-mode", "no", "--dir",
                              self.home)
        if DNSPERF in tools:
            self._start_nsd()

    def _start_nsd(self):
        with open(self.path("nsd.conf"), "w", encoding="ascii") as file:
            file.write(NSD_CONF.format(server=SERVER, port=DNS_PORT, home=self.home))
        with open(self.path("bench.zone"), "w", encoding="ascii") as file:
            file.write(ZONE)
            file.writelines(f"{name}. 60 A 10.0.0.1\n" for name in dns_names())
        self.start_server("server", DNS_PORT, "nsd", "-d", "-c", self.path("nsd.conf"),
                          protocol="udp")

    def start_sink(self, bench, host, ports, processes, protocol="tcp"):
        """The server of all workloads of culvert-bench."""
        listen = [word for port in ports for word in ("--listen", f"{host}:{port}")]
        process = self.start("relay" if host == RELAY else "server", bench, "sink",
                             "--protocol", protocol, "--processes", str(processes), *listen)

        def is_ready():
            if process.poll() is not None:
                raise LabError(f"culvert-bench sink did not start:\n{tail(process.log)}")
            with open(process.log, encoding="utf-8", errors="replace") as file:
                return "culvert-bench: ready" in file.read()

        wait_until(is_ready, "culvert-bench sink to be ready")
        return process
