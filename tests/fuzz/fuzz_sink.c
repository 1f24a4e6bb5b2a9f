// SPDX-License-Identifier: BSD-2-Clause
/*
 * The sink of culvert-bench (user/bench/peer.c) with a client that knows the protocol, and keeps to
 * it or does not: headers, requests, streams and tails, right and wrong, in any cut, with any
 * readiness and errors.  The calls to the kernel and the event loop are replaced.
 *
 * What the sink sends is checked byte by byte against protocol.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "bench/peer.h"
#include "fuzz.h"

#define NO_FD (1 << 20) /* close(2) says EBADF */
#define FEED_MAX 65536
#define TURNS_MAX 200

/* The client, and the network between. */
static struct {
	uint8_t feed[FEED_MAX]; /* on its way to the sink */
	size_t at, n;
	size_t cut;   /* the sink gets so many bytes at a time */
	bool fin;     /* after them */
	int error;    /* of recv(2), and of send(2) */
	size_t room;  /* of the socket that the sink sends to */

	struct header header;
	bool agreed;           /* the sink has had a header that is right */
	bool honest;           /* all that followed it was right, too */
	bool tailed;           /* the client has sent its tail: that should be all */
	uint64_t sent;         /* payload, as the client has sent it */
	struct pattern up, down;
	uint8_t heard[PROTOCOL_TAIL]; /* of the sink: a word that is not whole yet */
	size_t heard_n;
	bool greeted, ended;
	uint64_t requests;
} c;

static struct source *watched;

int loop_watch(struct loop *l, struct source *s, uint32_t events, bool on)
{
	(void)l;
	(void)events;
	must(on && s->fd == NO_FD, "fd %d", s->fd);
	watched = s;
	return 0;
}

ssize_t recv(int fd, void *data, size_t n, int flags)
{
	size_t left = c.n - c.at;

	must(fd == NO_FD && !flags && n == PATTERN_PIECE, "reads %zu bytes", n);
	if (!left && (c.fin || c.error)) {
		errno = c.error;
		return c.error ? -1 : 0;
	}
	if (!left) {
		errno = EAGAIN;
		return -1;
	}
	n = left < c.cut ? left : c.cut;
	memcpy(data, c.feed + c.at, n);
	c.at += n;
	return (ssize_t)n;
}

/* --- what the sink says --- */

static bool is_transfer(void)
{
	return c.header.wire != WIRE_EXCHANGE;
}

/* One byte of a word or a tail. */
static void hear_word(uint8_t byte)
{
	struct tail t;

	c.heard[c.heard_n++] = byte;
	if (!c.greeted) {
		must(!memcmp(c.heard, PROTOCOL_HELLO, c.heard_n), "no greeting");
		c.greeted = c.heard_n == PROTOCOL_WORD;
		c.heard_n = c.greeted ? 0 : c.heard_n;
		return;
	}
	if (!tail_begins(c.heard, c.heard_n)) { /* it looked like one */
		must(wire_sends_down(c.header.wire) &&
		     !memcmp(c.heard, pattern_bytes(&c.down), c.heard_n),
		     "neither the stream nor a tail at %llu", (unsigned long long)c.down.position);
		pattern_advance(&c.down, c.heard_n);
		c.heard_n = 0;
		return;
	}
	if (c.heard_n < PROTOCOL_TAIL)
		return;
	must(!tail_parse(c.heard, &t), "a damaged tail");
	must(t.sent == c.down.position, "says that it sent %llu bytes", (unsigned long long)t.sent);
	must(t.received <= c.sent && t.window <= t.received,
	     "says that it received more than was sent");
	must(!t.wrong || !c.honest, "says that something was wrong");
	c.ended = true;
}

static void hear_exchange(uint8_t byte)
{
	uint64_t due = c.requests * c.header.size;

	must(!c.ended, "a byte after its last word");
	if (byte == *pattern_bytes(&c.down)) {
		must(c.down.position < due, "an answer before the request");
		pattern_advance(&c.down, 1);
		return;
	}
	must(!c.honest && byte == (uint8_t)~*pattern_bytes(&c.down), "a wrong byte");
	c.ended = true;
}

/* Whether the first byte of a block is payload or begins a tail is known with the next bytes. */
static void hear_stream(uint8_t byte)
{
	must(!c.ended, "a byte after its tail");
	if (!c.greeted || c.heard_n || c.down.position % PROTOCOL_BLOCK == 0) {
		hear_word(byte);
		return;
	}
	must(wire_sends_down(c.header.wire) && byte == *pattern_bytes(&c.down),
	     "a wrong byte at %llu", (unsigned long long)c.down.position);
	pattern_advance(&c.down, 1);
}

static ssize_t hear(const uint8_t *data, size_t n)
{
	if (c.error || !c.room) {
		errno = c.error ? c.error : EAGAIN;
		return -1;
	}
	must(c.agreed, "speaks before the header");
	n = n < c.room ? n : c.room;
	c.room -= n;
	for (size_t i = 0; i < n; i++) {
		if (is_transfer())
			hear_stream(data[i]);
		else
			hear_exchange(data[i]);
	}
	return (ssize_t)n;
}

ssize_t send(int fd, const void *data, size_t n, int flags)
{
	must(fd == NO_FD && flags == MSG_NOSIGNAL && n, "sends %zu bytes", n);
	return hear(data, n);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	ssize_t sum = 0;

	must(fd == NO_FD && flags == MSG_NOSIGNAL && msg->msg_iovlen == 2, "sendmsg");
	for (size_t i = 0; i < 2; i++) {
		const struct iovec *v = &msg->msg_iov[i];
		ssize_t n = v->iov_len ? hear(v->iov_base, v->iov_len) : 0;

		if (n < 0)
			return sum ? sum : n;
		sum += n;
		if ((size_t)n < v->iov_len)
			break;
	}
	return sum;
}

/* --- what the client says --- */

static void say(const void *data, size_t n)
{
	if (n > FEED_MAX - c.n) {
		n = FEED_MAX - c.n;
		c.honest = false;
	}
	if (c.tailed && n)
		c.honest = false;
	memcpy(c.feed + c.n, data, n);
	c.n += n;
}

static void say_header(struct input *in)
{
	uint8_t frame[PROTOCOL_HEADER];

	c.header = (struct header){
		.wire = WIRE_EXCHANGE + input_byte(in) % 4,
		.full = input_byte(in) % 2,
		.size = (uint32_t)(input_size(in) % TRANSFER_SIZE_MAX) + 1,
		.seed = input_number(in, 2),
		.measure_ms = 1000,
	};
	header_encode(&c.header, frame);
	pattern_open(&c.up, c.header.seed, PATTERN_UP);
	pattern_open(&c.down, c.header.seed, PATTERN_DOWN);
	c.agreed = c.honest = true;
	say(frame, sizeof(frame));
}

/* What an honest client begins with. */
static void say_go(struct input *in)
{
	say_header(in);
	if (is_transfer())
		say(PROTOCOL_GO, PROTOCOL_WORD);
}

static void say_payload(struct input *in)
{
	size_t n = (size_t)(input_size(in) % (FEED_MAX / 2)) + 1, before = c.n;
	bool wrong = input_byte(in) % 8 == 7;

	if (input_byte(in) % 4 == 0 && !is_transfer() && c.header.size < FEED_MAX)
		n = c.header.size;
	if (is_transfer() && input_byte(in) % 2)
		n = (n + PROTOCOL_BLOCK - 1) / PROTOCOL_BLOCK * PROTOCOL_BLOCK;
	say(pattern_bytes(&c.up), n);
	n = c.n - before;
	pattern_advance(&c.up, n);
	c.sent += n;
	if (wrong && n) {
		c.feed[before + input_size(in) % n] ^= 0x55;
		c.honest = false;
	}
	if (!is_transfer())
		c.requests = c.sent / c.header.size;
}

static void say_raw(struct input *in)
{
	const uint8_t *bytes;
	size_t n = input_bytes(in, input_byte(in) % 64, &bytes);

	say(bytes, n);
	c.sent += n;
	c.honest = c.honest && !n;
	if (c.agreed && !is_transfer())
		c.requests = c.sent / c.header.size; /* it may have been right by chance */
}

static void say_tail(struct input *in)
{
	struct tail t = { .sent = c.up.position + (input_byte(in) % 8 == 7) };
	uint8_t frame[PROTOCOL_TAIL];

	tail_encode(&t, frame);
	say(frame, sizeof(frame));
	c.tailed = true;
	c.sent += sizeof(frame); /* to a sink that does not see that it is one */
	if (!c.agreed || !is_transfer() || c.up.position % PROTOCOL_BLOCK)
		c.honest = false;
}

/* Readiness, room and errors; then the sink is called, as the loop would. */
static void say_event(struct input *in)
{
	static const uint32_t bits[] = { EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR };
	uint8_t which = input_byte(in), how = input_byte(in);
	uint32_t events = 0;

	for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
		events |= which >> i & 1 ? bits[i] : 0;
	c.fin = c.fin || how % 16 == 15;
	c.error = how % 32 == 14 ? ECONNRESET : how % 32 == 13 ? EPIPE : 0;
	c.cut = input_size(in) % 20000 + 1;
	c.room = input_size(in) % (1 << 15);
	watched->handle(watched, events);
	if (c.at == c.n)
		c.at = c.n = 0;
}

static void take_turn(struct input *in)
{
	switch (input_byte(in) % 6) {
	case 0:
		if (c.agreed || c.sent)
			say_payload(in);
		else
			say_go(in);
		break;
	case 1:
		say_raw(in);
		break;
	case 2:
		say(PROTOCOL_GO, PROTOCOL_WORD);
		c.sent += PROTOCOL_WORD; /* where no GO is due, it is payload, and wrong */
		c.honest = false;
		if (c.agreed && !is_transfer())
			c.requests = c.sent / c.header.size;
		break;
	case 3:
		say_tail(in);
		break;
	default:
		say_event(in);
	}
}

static unsigned int count(const struct peer_list *l)
{
	unsigned int n = 0;

	for (const struct peer *p = l->first; p; p = p->next)
		n++;
	return n;
}

static void check_sink(const struct sink *s)
{
	unsigned int live = count(&s->waiting) + count(&s->served);

	must(live == s->n_peers && live + count(&s->dead) == 1, "%u peers", live);
	must(s->tally->wrong <= 1 && s->tally->bad_headers <= 1, "%llu wrong",
	     (unsigned long long)s->tally->wrong);
	must(!c.honest || !s->tally->wrong, "an honest client is wrong");
	must(!c.agreed || !s->tally->bad_headers || !c.honest || c.fin || c.error,
	     "a good header is bad");
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
/* NOLINTNEXTLINE(readability-non-const-parameter): libFuzzer's prototype */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	pattern_init();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct sink_tally tally = { 0 };
	struct sink s = { .tally = &tally };

	memset(&c, 0, sizeof(c));
	peer_lists_open(&s);
	s.buffer = malloc(PROTOCOL_TAIL + PATTERN_PIECE);
	must(s.buffer && !peer_open(&s, NO_FD), "cannot be opened");
	if (input_byte(&in) % 4)
		say_go(&in);
	for (unsigned int turns = 0; in.left && s.n_peers && turns < TURNS_MAX; turns++) {
		take_turn(&in);
		check_sink(&s);
	}
	if (input_byte(&in) % 2)
		peer_expire(&s, clock_ns() + PEER_HEADER_NS);
	peer_close_all(&s);
	must(!s.n_peers && !s.waiting.first && !s.served.first && !s.dead.first, "a peer is left");
	free(s.buffer);
	return 0;
}
