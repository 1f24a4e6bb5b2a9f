# SPDX-License-Identifier: BSD-2-Clause
"""Clients and servers of random_operations.py: each byte says whose it is, and where in its stream.

A stream begins with the number of its client, so that the server knows it.  The bytes of either end
are a part of one random text, at a place that number, end and offset give.  A datagram is a question
of udp_peer.py, which names its client.  An end that comes without an excuse is a fault, and so is each
byte, or datagram, that is another's, doubled, or missing.
"""

import concurrent.futures
import contextlib
import errno
import heapq
import itertools
import queue
import random
import select
import socket
import struct
import threading
import time

from labkit import place
from server_names import hello_of
from standby_rig import SERVER_SIDE
from udp_peer import HEAD, answer, question

PERIOD, STRIDE, CHUNK = 1000003, 104729, 1 << 16
TEXT = random.Random(43).randbytes(PERIOD)
TEXT += TEXT[:CHUNK]
PREFACE = struct.Struct("!4sI")
MAGIC = b"cvrt"
CLIENT, SERVER = 0, 1
# By kind: seconds between two looks whether something is to be said.
PACE = {"talk": 0.02, "idle": 3.0, "down": 0.01, "up": 0.01, "half": 0.05}


def text_of(number, side, at, n):
    at = (at + (2 * number + side) * STRIDE) % PERIOD
    return TEXT[at:at + n]


def name_of(address):
    """As culvert writes it."""
    return place(address[0].removeprefix("::ffff:"), address[1])


class End:
    """Of a stream: what it has said and heard, and how it has ended."""

    def __init__(self, stream, side, sock, first=b""):
        self.stream, self.side, self.sock = stream, side, sock
        self.first = first  # to be sent before all else
        self.may = self.sent = self.got = 0  # bytes; MAY: so many are to be sent
        self.fin = self.shut = self.eof = False  # FIN follows what MAY be sent; was sent; has come
        self.over = None  # "closed", or the name of an error


class Stream:
    """A connection of a client, by a forward, to a server."""

    def __init__(self, number, forward, kind, chance):
        self.number, self.forward, self.kind, self.chance = number, forward, kind, chance
        self.name = ""
        self.ends = [None, None]
        self.port = None  # of the server
        self.excuse = None  # why it may end
        self.must_end = self.closing = self.works = False

    def __str__(self):
        how = [f"{e.over or 'open'}, {e.sent} of {e.may} sent, {e.got} got" if e else "not there"
               for e in self.ends]
        return f"{self.kind} {self.number} of {self.forward}, {self.name}: client {how[0]}; " \
            f"server {how[1]}; {self.excuse or 'no excuse'}"

    @property
    def is_over(self):
        return all(e is None or e.over for e in self.ends)

    def progress(self):
        return [e.got if e else 0 for e in self.ends]


class Flow:
    """A client of UDP."""

    def __init__(self, number, forward, name, sock, chance):
        self.number, self.forward, self.name, self.sock = number, forward, name, sock
        self.chance = chance
        self.seq = self.answers = 0
        self.waiting, self.heard = {}, set()
        self.asked = self.excused = 0.0
        self.peer = None  # as whom a server knows it, and at which port
        self.port = None  # of the one server that it may come to

    def __str__(self):
        return f"client {self.number} of {self.forward}, {self.name}, {self.answers} answers of {self.seq}"


class Ends:
    """A thread that plays all of them; what is public is called by another one."""

    def __init__(self, lab, forwards):
        self.lab = lab
        self.poll, self.watched = select.epoll(), {}  # what to call, by descriptor
        self.calls, self.timers, self.order = queue.SimpleQueue(), [], itertools.count()
        self.woken, self.wake = socket.socketpair()
        self.watch(self.woken, lambda _: self.woken.recv(4096))
        self.numbers = itertools.count(1)
        self.streams, self.flows, self.faults = {}, {}, []
        self.hello = hello_of("example.org")
        self.is_running = True
        for forward in forwards.values():
            for port in forward.server_ports():
                self.listen(port, forward)
        threading.Thread(target=self.run, daemon=True).start()

    # --- for the other thread ---

    def call(self, function, *arguments):
        done = concurrent.futures.Future()
        self.calls.put((done, function, arguments))
        self.wake.send(b".")
        return done.result(60)

    def begin(self, forward, kind, chance):
        return self.call(self.open_flow if forward.udp else self.connect, forward, kind, chance)

    def close(self, stream):
        """In order: the client says all that it has begun, and then FIN."""
        def close():
            stream.closing = True
            client, server = stream.ends
            client.fin = True
            if stream.kind == "half" and server:
                server.fin = True
            for end in filter(None, stream.ends):
                if end.fin and not end.over:
                    self.flush(end)

        self.call(close)

    def abort(self, stream, side):
        def abort():
            end = stream.ends[side]
            if end and not end.over:
                end.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.end(end, "aborted")

        stream.excuse = stream.excuse or "aborted"
        self.call(abort)

    def poke(self, streams):
        """Each end that can says something."""
        def poke():
            for stream in streams:
                for end in filter(None, stream.ends):
                    if not end.over and not end.fin:
                        end.may = max(end.may, end.sent) + 1
                        self.flush(end)

        self.call(poke)

    def drop(self, flow):
        """A flow that may be served by another socket from now on is no more."""
        def drop():
            if self.flows.pop(flow.number, None):
                self.leave(flow.sock)
                flow.sock.close()

        self.call(drop)

    def stop(self):
        self.is_running = False
        self.wake.send(b".")

    # --- the loop ---

    def run(self):
        try:
            while self.is_running:
                wait = max(self.timers[0][0] - time.monotonic(), 0) if self.timers else 1
                for fd, mask in self.poll.poll(wait):
                    if fd in self.watched:
                        self.watched[fd](mask)
                while not self.calls.empty():
                    done, function, arguments = self.calls.get()
                    try:
                        done.set_result(function(*arguments))
                    except Exception as error:  # pylint: disable=broad-except
                        done.set_exception(error)
                while self.timers and self.timers[0][0] <= time.monotonic():
                    heapq.heappop(self.timers)[2]()
        except Exception as error:  # pylint: disable=broad-except
            self.faults.append(f"the ends: {error!r}")
            raise

    def watch(self, sock, function, events=select.EPOLLIN):
        self.watched[sock.fileno()] = function
        self.poll.register(sock, events)

    def leave(self, sock):
        del self.watched[sock.fileno()]
        self.poll.unregister(sock)

    def after(self, seconds, function):
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self.order), function))

    def fault(self, what):
        self.faults.append(f"{time.monotonic():.2f} {what}")

    # --- streams ---

    def listen(self, port, forward):
        sock = self.lab.socket("server", "::", socket.SOCK_DGRAM if forward.udp else
                               socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if not forward.udp:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::", port))
        sock.setblocking(False)
        if forward.udp:
            self.watch(sock, lambda _: self.serve(sock, port, forward))
            return
        sock.listen(1000)
        self.watch(sock, lambda _: self.accept(sock, port, forward))

    def connect(self, forward, kind, chance):
        stream = Stream(next(self.numbers), forward, kind, chance)
        address, port, stream.port = forward.choose(chance)
        sock = self.lab.socket("client", address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(("", 0))  # a port of its own, since the walk knows streams by the client's address
        sock.setblocking(False)
        head = PREFACE.pack(MAGIC, stream.number)
        end = End(stream, CLIENT, sock, (self.hello if forward.hello else b"") + head)
        stream.ends[CLIENT] = end
        with contextlib.suppress(BlockingIOError):
            sock.connect((address, port))
        stream.name = name_of(sock.getsockname())
        self.streams[stream.number] = stream
        self.watch(sock, lambda mask: self.on_event(end, mask), select.EPOLLIN | select.EPOLLOUT)
        self.after(PACE[kind], lambda: self.tick(stream))
        return stream

    def accept(self, listener, port, forward):
        with contextlib.suppress(OSError):
            sock, peer = listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            got = bytearray()
            self.watch(sock, lambda _: self.preface(sock, peer, port, forward, got))

    def preface(self, sock, peer, port, forward, got):
        """The first bytes tell which client is there."""
        try:
            data = sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        got += data
        at, client = 0, None
        if forward.header and len(got) >= 16:
            at = 16 + int.from_bytes(got[14:16], "big")
            client = got[16:at]
        if forward.hello and len(got) >= at + 5:
            at += 5 + int.from_bytes(got[at + 3:at + 5], "big")
        ready = at + PREFACE.size <= len(got) and (at or not (forward.header or forward.hello))
        if data and not ready:
            return
        self.leave(sock)
        if not ready:  # its client has given up, or the relay
            sock.close()
            return
        magic, number = PREFACE.unpack_from(got, at)
        stream = self.streams.get(number)
        if magic != MAGIC or not stream or stream.ends[SERVER] or stream.forward is not forward:
            self.fault(f"{forward}: a connection to port {port} begins with {bytes(got[:at + 40])}")
            sock.close()
            return
        self.arrive(stream, sock, peer, port, client, bytes(got[at + PREFACE.size:]))

    def arrive(self, stream, sock, peer, port, client, data):
        forward = stream.forward
        if stream.port not in (None, port) or port not in forward.server_ports():
            self.fault(f"{stream}: it comes to port {port}")
        stream.port = port
        wanted = [stream.ends[CLIENT].sock.getsockname()[0]] if forward.transparent else SERVER_SIDE
        if peer[0].removeprefix("::ffff:") not in wanted:
            self.fault(f"{stream}: it comes from {name_of(peer)}")
        if client is not None and int.from_bytes(client[-4:-2], "big") != \
                stream.ends[CLIENT].sock.getsockname()[1]:
            self.fault(f"{stream}: its header says {client.hex()}")
        end = End(stream, SERVER, sock, b"!")
        stream.ends[SERVER] = end
        self.watch(sock, lambda mask: self.on_event(end, mask))
        self.take(end, data)
        self.flush(end)

    def on_event(self, end, mask):
        if mask & ~select.EPOLLOUT:
            try:
                data = end.sock.recv(CHUNK)
                if data:
                    self.take(end, data)
                elif not end.eof:
                    self.on_fin(end)
                elif mask & select.EPOLLERR:  # recv(2) does not tell behind FIN
                    self.lose(end, "EPIPE")
            except BlockingIOError:
                pass
            except OSError as error:
                self.lose(end, errno.errorcode[error.errno])
        if mask & select.EPOLLOUT and not end.over:
            self.flush(end)

    def take(self, end, data):
        stream, side = end.stream, end.side
        if side == CLIENT and not stream.works and data:
            if data[:1] != b"!":
                self.fault(f"{stream}: the server's first byte is {data[:1]}")
            stream.works, data = True, data[1:]
            if stream.kind == "half":
                end.fin = True
                self.flush(end)
        wanted = text_of(stream.number, 1 - side, end.got, len(data))
        if data != wanted:
            self.tell_wrong(end, data, wanted)
        end.got += len(data)
        if side == SERVER and stream.kind in ("talk", "idle") and end.got > end.may:
            end.may = end.got
            self.flush(end)

    def tell_wrong(self, end, data, wanted):
        at = next(i for i, (a, b) in enumerate(zip(data, wanted)) if a != b)
        whose, place = "nobody's", TEXT.find(data[at:at + 16])
        for number in self.streams if place >= 0 else ():
            for side in CLIENT, SERVER:
                offset = (place - (2 * number + side) * STRIDE) % PERIOD
                sent = self.streams[number].ends[side]
                if sent and offset <= sent.sent:
                    whose = f"byte {offset} of end {side} of {number}"
        self.fault(f"{end.stream}: byte {end.got + at} at end {end.side} is {whose}")

    def flush(self, end):
        """Send what may be sent; until all is, wait for room."""
        events = select.EPOLLOUT
        try:
            while end.first:
                end.first = end.first[end.sock.send(end.first):]
            while end.sent < end.may:
                end.sent += end.sock.send(text_of(end.stream.number, end.side, end.sent,
                                                  min(CHUNK, end.may - end.sent)))
            events = 0
            if end.fin and not end.shut:
                end.sock.shutdown(socket.SHUT_WR)
                end.shut = True
                if end.eof:
                    self.end(end, "closed")
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose(end, errno.errorcode[error.errno])
        if not end.over:
            self.poll.modify(end.sock, events | (0 if end.eof else select.EPOLLIN))

    def on_fin(self, end):
        """FIN has come: all that was said before must be here."""
        stream, other = end.stream, end.stream.ends[1 - end.side]
        if not stream.excuse and (not other or not other.shut or end.got != other.sent):
            self.fault(f"{stream}: the stream ends early at end {end.side}")
        end.eof = True
        if stream.excuse and not (other and other.shut):
            self.end(end, "ended early")
        elif end.shut:
            self.end(end, "closed")
        else:
            end.fin = end.fin or (end.side == SERVER and stream.kind != "half")
            self.flush(end)

    def lose(self, end, how):
        if not end.stream.excuse:
            self.fault(f"{end.stream}: end {end.side} is told {how}")
        self.end(end, how)

    def end(self, end, how):
        end.over = how
        self.leave(end.sock)
        end.sock.close()

    def tick(self, stream):
        """Say what is due."""
        client, server = stream.ends
        if stream.is_over or stream.closing:
            return
        speaker = server if stream.kind in ("down", "half") else client
        if stream.works and speaker and not speaker.over and speaker.sent == speaker.may and \
                not speaker.fin:
            if stream.kind not in ("talk", "idle") or client.got >= client.may:
                speaker.may += {"down": CHUNK, "up": CHUNK, "half": 500}.get(stream.kind) or \
                    stream.chance.randint(1, 3000)
                self.flush(speaker)
        self.after(PACE[stream.kind], lambda: self.tick(stream))

    # --- datagrams ---

    def open_flow(self, forward, _kind, chance):
        address, port, at = forward.choose(chance)
        sock = self.lab.socket("client", address, socket.SOCK_DGRAM)
        sock.connect((address, port))
        sock.setblocking(False)
        flow = Flow(next(self.numbers), forward, name_of(sock.getsockname()), sock, chance)
        flow.port = at
        self.flows[flow.number] = flow
        self.watch(sock, lambda _: self.hear(flow))
        self.ask(flow)
        return flow

    def ask(self, flow):
        now = time.monotonic()
        if flow.number not in self.flows:
            return
        if not flow.waiting or now - flow.asked > 0.4:
            flow.seq += 1
            flow.asked = now
            flow.waiting[flow.seq] = size = [flow.chance.randint(30, 1200) for _ in range(2)]
            with contextlib.suppress(OSError):  # of an earlier one
                flow.sock.send(question(flow.number, flow.seq, size[0], reply=size[1]))
        self.after(0.06, lambda: self.ask(flow))

    def hear(self, flow):
        try:
            data = flow.sock.recv(65536)
        except OSError:
            return
        number, seq = HEAD.unpack_from(data)[1:3] if len(data) >= HEAD.size else (0, 0)
        size = flow.waiting.pop(seq, None) if number == flow.number else None
        if number != flow.number:
            self.fault(f"{flow}: a foreign datagram, of {number}")
        elif not size:
            self.fault(f"{flow}: answer {seq} is a second one, or to no question")
        elif data != answer(question(number, seq, size[0], reply=size[1]))[0]:
            self.fault(f"{flow}: answer {seq} is wrong")
        else:
            flow.answers += 1

    def serve(self, sock, port, forward):
        try:
            data, peer = sock.recvfrom(65536)
        except OSError:
            return
        number, seq, reply = HEAD.unpack_from(data)[1:4] if len(data) >= HEAD.size else (0, 0, 0)
        flow = self.flows.get(number)
        if not flow and 0 < number < 1 << 20:  # one that is no more
            return
        if not flow or flow.forward is not forward or \
                data != question(number, seq, len(data), reply=reply):
            self.fault(f"{forward}: a wrong datagram comes to port {port} from {name_of(peer)}")
            return
        if seq in flow.heard:
            self.fault(f"{flow}: question {seq} comes twice")
        flow.heard.add(seq)
        peer_is = name_of(peer), port
        if flow.peer not in (None, peer_is) and time.monotonic() > flow.excused:
            self.fault(f"{flow}: the server knew it as {flow.peer}, and now as {peer_is}")
        flow.peer = peer_is
        if flow.port not in (None, port) or peer[0].removeprefix("::ffff:") not in SERVER_SIDE:
            self.fault(f"{flow}: it comes to port {port} from {name_of(peer)}")
        with contextlib.suppress(OSError):
            sock.sendto(answer(data)[0], peer)
