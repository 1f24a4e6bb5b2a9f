// SPDX-License-Identifier: BSD-2-Clause
/*
 * A connection at the sink.  Its state machine takes received bytes piece by piece, since header,
 * GO and payload may be cut anywhere.
 *
 * Exchanges are edge-triggered, transfers level-triggered: see the two engines in conn.c.
 */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"

#define EVENTS (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) /* until it is a transfer */
#define FIN_BEHIND (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

/* --- begin and end --- */

static void peer_close(struct peer *p)
{
	if (p->state == PEER_CLOSED)
		return;
	p->state = PEER_CLOSED;
	close(p->source.fd);
	p->source.registered = false;
	p->next = p->sink->closed;
	p->sink->closed = p;
}

static void peer_reset(struct peer *p)
{
	const struct linger reset = { .l_onoff = 1 };

	setsockopt(p->source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	peer_close(p);
}

void peer_free_closed(void *sink)
{
	struct sink *s = sink;

	while (s->closed) {
		struct peer *p = s->closed;

		s->closed = p->next;
		free(p);
	}
}

static void bad_header(struct peer *p)
{
	p->sink->tally->bad_headers++;
	peer_close(p);
}

/* --- sending --- */

static void queue_tail(struct peer *p)
{
	struct frame f = {
		.tail = {
			.sent = p->out.at.position,
			.received = p->in.at.position,
			.window = p->in.window,
			.wrong = p->in.wrong,
		},
	};

	frame_seal(&f, FRAME_TAIL);
	sender_note(&p->out, &f, sizeof(f));
	p->tailed = true;
}

static void watch_transfer(struct peer *p)
{
	uint32_t events = p->state == PEER_CLOSING ? 0 : EPOLLIN;

	if (!sender_idle(&p->out))
		events |= EPOLLOUT;
	if (loop_watch(&p->sink->loop, &p->source, events, true))
		peer_close(p);
}

/* The response is sent: end first, if the client wants that. */
static void answered(struct peer *p)
{
	if (p->header.ends == ENDS_SERVER)
		peer_close(p);
	else if (p->header.ends == ENDS_SERVER_HALF)
		shutdown(p->source.fd, SHUT_WR);
}

/* Send: a transfer once a turn, an exchange until all is sent or the socket has no room. */
static void push(struct peer *p)
{
	bool transfer = is_transfer(p->header.workload);
	size_t piece = transfer ? p->header.size : PATTERN_PIECE;
	ssize_t n = 0;

	while (n >= 0 && !sender_idle(&p->out)) {
		n = sender_push(&p->out, p->source.fd, piece);
		if (n > 0)
			p->sink->tally->sent += (uint64_t)n;
		if (transfer)
			break;
	}
	/* the client's stream is over, well or not: ours ends, too */
	if (transfer && !p->tailed && p->state >= PEER_DEAF && sender_idle(&p->out))
		queue_tail(p);
	if ((n < 0 && n != -EAGAIN) || (p->state == PEER_CLOSING && sender_idle(&p->out)))
		peer_close(p);
	else if (transfer)
		watch_transfer(p);
	else if (p->out.at.position && sender_idle(&p->out))
		answered(p);
}

/* --- receiving --- */

/* Answer with a byte that is wrong on purpose: so the client counts it. */
static void answer_wrong(struct peer *p)
{
	uint8_t wrong = (uint8_t) ~*pattern_bytes(&p->out.at);

	p->sink->tally->wrong++;
	p->out.left = 0;
	if (!sender_has_note(&p->out))
		sender_note(&p->out, &wrong, 1);
	p->state = PEER_DEAF;
	push(p);
}

/* The request that is complete is not the first. */
static bool is_second(const struct peer *p)
{
	return p->in.at.position > p->header.size;
}

static void take_requests(struct peer *p, const uint8_t *data, size_t n)
{
	uint64_t now = clock_ns();

	p->sink->tally->received += n;
	while (n) {
		size_t part = smaller(n, p->wanted);

		receiver_take(&p->in, data, part, now);
		if (p->in.wrong) {
			answer_wrong(p);
			return;
		}
		data += part;
		n -= part;
		p->wanted -= part;
		if (p->wanted)
			break;
		p->wanted = p->header.size;
		if (p->header.ends == ENDS_SERVER_RESET && is_second(p)) {
			peer_reset(p);
			return;
		}
		if (p->header.ends != ENDS_SERVER_HALF || !is_second(p))
			p->out.left += p->header.size;
	}
	if (p->header.ends != ENDS_CLIENT_HALF)
		push(p);
}

static void take_stream(struct peer *p, uint8_t *data, size_t n)
{
	p->sink->tally->received += n;
	receiver_stream(&p->in, data, n, clock_ns());
	if (!p->in.wrong && !p->in.ended)
		return;
	p->sink->tally->wrong += p->in.wrong;
	if (p->in.ended && !receiver_complete(&p->in) && !p->in.wrong)
		p->sink->tally->cut++;
	p->state = PEER_DEAF;
	sender_stop(&p->out);
	push(p);
}

static void begin_transfer(struct peer *p)
{
	p->state = PEER_TRANSFER;
	p->in.begin_ns = clock_ns() + p->header.warmup_ms * NS_PER_MS;
	p->in.end_ns = p->in.begin_ns + p->header.seconds_ms * NS_PER_MS;
	if (sends_down(p->header.workload))
		p->out.left = SENDER_ENDLESS;
	if (memcmp(p->word, PROTOCOL_GO, PROTOCOL_WORD)) {
		p->in.wrong = true;
		p->sink->tally->wrong++;
		p->state = PEER_DEAF;
		p->out.left = 0;
	}
	push(p);
}

static void take_header(struct peer *p)
{
	if (!frame_valid(&p->frame, FRAME_HEADER)) {
		bad_header(p);
		return;
	}
	p->header = p->frame.header;
	sender_open(&p->out, p->header.seed, PATTERN_DOWN);
	receiver_open(&p->in, p->header.seed, PATTERN_UP, p->header.sample);
	p->wanted = p->header.size;
	p->word_n = 0;
	p->state = PEER_EXCHANGE;
	if (is_transfer(p->header.workload)) {
		p->state = PEER_GREETED;
		sender_note(&p->out, PROTOCOL_HELLO, PROTOCOL_WORD);
		push(p);
	}
}

static void feed(struct peer *p, uint8_t *data, size_t n)
{
	while (n && (p->state == PEER_HEADER || p->state == PEER_GREETED)) {
		size_t len = p->state == PEER_HEADER ? sizeof(p->frame) : PROTOCOL_WORD;
		size_t part = smaller(n, len - p->word_n);

		memcpy(p->word + p->word_n, data, part);
		p->word_n += (uint8_t)part;
		data += part;
		n -= part;
		if (p->word_n == len && p->state == PEER_HEADER)
			take_header(p);
		else if (p->word_n == len)
			begin_transfer(p);
	}
	if (!n)
		return;
	if (p->state == PEER_EXCHANGE)
		take_requests(p, data, n);
	else if (p->state == PEER_TRANSFER)
		take_stream(p, data, n);
	/* other states ignore the bytes */
}

/* The client has said less than it has to. */
static bool is_cut(const struct peer *p)
{
	if (p->state == PEER_EXCHANGE)
		return p->wanted != p->header.size ||
		       (p->header.ends == ENDS_SERVER_HALF && !is_second(p));
	return p->state == PEER_TRANSFER;
}

static void take_fin(struct peer *p)
{
	if (p->state == PEER_HEADER) {
		bad_header(p);
		return;
	}
	p->sink->tally->cut += is_cut(p);
	if (p->state == PEER_TRANSFER)
		sender_stop(&p->out);
	if (p->state == PEER_GREETED)
		p->tailed = true; /* the transfer has not begun, so no tail is due */
	p->state = PEER_CLOSING;
	push(p);
}

/* One recv(2).  False if there is nothing more to read now. */
static bool pull(struct peer *p, uint32_t events)
{
	uint8_t *data = p->sink->buffer + sizeof(struct frame);
	ssize_t n = recv(p->source.fd, data, PATTERN_PIECE, 0);

	if (n < 0 && errno != EAGAIN) {
		p->sink->tally->cut += p->header.ends == ENDS_SERVER_HALF && is_cut(p);
		peer_close(p);
	}
	if (n == 0)
		take_fin(p);
	if (n <= 0)
		return false;
	feed(p, data, (size_t)n);
	if (p->state == PEER_CLOSED || is_transfer(p->header.workload))
		return false; /* level-triggered: there will be another event */
	return n == PATTERN_PIECE || (events & FIN_BEHIND);
}

static void handle(struct source *source, uint32_t events)
{
	struct peer *p = container_of(source, struct peer, source);

	if ((events & EPOLLOUT) && !sender_idle(&p->out))
		push(p);
	if (p->state == PEER_CLOSED)
		return;
	if (p->state == PEER_CLOSING) {
		if (events & (EPOLLHUP | EPOLLERR))
			peer_close(p); /* reset: what is unsent stays so */
		return;
	}
	if (!(events & (EPOLLIN | FIN_BEHIND)))
		return;
	while (pull(p, events))
		;
}

int peer_open(struct sink *s, int fd)
{
	struct peer *p = calloc(1, sizeof(*p));
	int r = -ENOMEM;

	if (p) {
		p->source = (struct source){ .handle = handle, .fd = fd };
		r = loop_watch(&s->loop, &p->source, EVENTS, true);
	}
	if (r) {
		close(fd);
		free(p);
		return r;
	}
	p->sink = s;
	s->tally->connections++;
	return 0;
}
