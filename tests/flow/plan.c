/* SPDX-License-Identifier: BSD-2-Clause */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#define MAX_PAUSING_MS 2000 /* most time that one side of a session sleeps */

struct maker {
	uint64_t rng;
	uint64_t cap; /* most bytes of one transfer */
	struct plan *plan;
};

static void add(struct maker *m, enum plan_side side, enum step_op op, uint64_t a, uint64_t b,
		uint64_t c)
{
	struct plan_script *s = &m->plan->side[side];

	if (s->n == PEER_MAX_STEPS)
		errx(1, "bug in the test: plan too long");
	s->steps[s->n++] = (struct step){ .op = op, .a = a, .b = b, .c = c };
	if (op == STEP_SEND || op == STEP_LAST || op == STEP_BOTH)
		s->bytes += a;
	else if (op == STEP_PING)
		s->bytes += a * b;
	else if (op == STEP_PONG)
		s->bytes += a * c;
	if (op == STEP_PING || op == STEP_PONG)
		s->rounds += a;
}

/* Often tiny, seldom several megabytes. */
static uint64_t pick_size(struct maker *m)
{
	uint64_t u = rng_range(&m->rng, 0, 99), n;

	if (u < 8)
		n = rng_range(&m->rng, 0, 1);
	else if (u < 40)
		n = rng_range(&m->rng, 1, 300);
	else if (u < 65)
		n = rng_range(&m->rng, 1, 16 << 10);
	else if (u < 86)
		n = rng_range(&m->rng, 1, 256 << 10);
	else if (u < 98)
		n = rng_range(&m->rng, 64 << 10, 2 << 20);
	else
		n = rng_range(&m->rng, 2 << 20, 8 << 20);
	return n < m->cap ? n : m->cap;
}

static uint64_t pick_message(struct maker *m)
{
	uint64_t n = rng_range(&m->rng, 1, 64);

	if (rng_chance(&m->rng, 30))
		n = rng_range(&m->rng, 64, 1500);
	else if (rng_chance(&m->rng, 10))
		n = rng_range(&m->rng, 1500, 16 << 10);
	return n < m->cap ? n : m->cap;
}

static void conversation(struct maker *m)
{
	uint64_t rounds = rng_range(&m->rng, 2, 60);
	uint64_t there = pick_message(m), back = pick_message(m);
	enum plan_side first = rng_chance(&m->rng, 80) ? PLAN_CLIENT : PLAN_SERVER;

	if (rng_chance(&m->rng, 40))
		rounds = rng_range(&m->rng, 60, 600);
	if (there + back > 4000 && rounds > 150)
		rounds = 150;
	if (m->cap < 1 << 20 && there + back > 1000 && rounds > 20)
		rounds = 20; /* each may wait 200 ms for a window probe */
	add(m, first, STEP_PING, rounds, there, back);
	add(m, 1 - first, STEP_PONG, rounds, there, back);
}

static void transfer(struct maker *m)
{
	uint64_t up = pick_size(m), down = pick_size(m);
	uint64_t kind = rng_range(&m->rng, 0, 2);

	if (kind == 0) {
		add(m, PLAN_CLIENT, STEP_BOTH, up, down, 0);
		add(m, PLAN_SERVER, STEP_BOTH, down, up, 0);
	} else {
		enum plan_side from = kind == 1 ? PLAN_CLIENT : PLAN_SERVER;

		add(m, from, STEP_SEND, up, 0, 0);
		add(m, 1 - from, STEP_RECV, up, 0, 0);
	}
}

static void pause_step(struct maker *m)
{
	enum plan_side side = (enum plan_side)rng_range(&m->rng, 0, 1);
	uint64_t ms = rng_range(&m->rng, 1, 40);

	if (rng_chance(&m->rng, 10))
		ms = rng_range(&m->rng, 200, 1500); /* long enough to count as idle */
	add(m, side, STEP_PAUSE, ms, 0, 0);
}

/* Send the last bytes and a FIN: N of them with it, or the FIN alone. */
static void finish_sending(struct maker *m, enum plan_side side, uint64_t n, bool together)
{
	if (together && n) {
		add(m, side, STEP_LAST, n, 0, 0);
	} else {
		if (n)
			add(m, side, STEP_SEND, n, 0, 0);
		add(m, side, STEP_FIN, 0, 0, 0);
	}
}

static void ending(struct maker *m)
{
	uint64_t kind = rng_range(&m->rng, 0, 9);
	enum plan_side first = (enum plan_side)(kind % 2), second = 1 - first;
	uint64_t last = rng_chance(&m->rng, 50) ? rng_range(&m->rng, 1, 1000) : 0;
	uint64_t tail = pick_size(m);
	bool together = rng_chance(&m->rng, 60);

	if (kind < 4) { /* both as soon as they can; few bytes, for neither reads meanwhile */
		uint64_t other = rng_chance(&m->rng, 50) ? rng_range(&m->rng, 1, 1000) : 0;

		finish_sending(m, first, last, together);
		finish_sending(m, second, other, together);
		add(m, first, STEP_RECV, other, 0, 0);
		add(m, second, STEP_RECV, last, 0, 0);
		add(m, first, STEP_EOF, 0, 0, 0);
		add(m, second, STEP_EOF, 0, 0, 0);
		return;
	}
	finish_sending(m, first, last, together);
	add(m, second, STEP_RECV, last, 0, 0);
	if (kind < 8) { /* what follows was caused by the EOF */
		add(m, second, STEP_EOF, 0, 0, 0);
		finish_sending(m, second, tail, rng_chance(&m->rng, 50));
	} else {
		finish_sending(m, second, tail, rng_chance(&m->rng, 50));
		add(m, second, STEP_EOF, 0, 0, 0);
	}
	add(m, first, STEP_RECV, tail, 0, 0);
	add(m, first, STEP_EOF, 0, 0, 0);
}

static void pick_abort(struct maker *m)
{
	struct plan *p = m->plan;
	uint64_t rx;

	p->aborts = PLAN_NOBODY;
	p->abort_tx = p->abort_rx = UINT64_MAX;
	if (!rng_chance(&m->rng, 6))
		return;
	p->aborts = (enum plan_side)rng_range(&m->rng, 0, 1);
	rx = p->side[1 - p->aborts].bytes;
	if (rng_chance(&m->rng, 50) || rx == 0)
		p->abort_tx = rng_range(&m->rng, 0, p->side[p->aborts].bytes);
	else
		p->abort_rx = rng_range(&m->rng, 1, rx);
}

/* Insert settings in front: how this side writes, reads and sizes its buffers. */
static void settings(struct maker *m, enum plan_side side, bool tiny)
{
	static const uint64_t sizes[] = { 1,        7,        100,      536,       1448,     4096,
					  16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10 };
	struct plan_script *s = &m->plan->side[side];
	uint64_t tx = s->bytes, rx = m->plan->side[1 - side].bytes, ms;
	uint64_t write_size = sizes[rng_range(&m->rng, 0, 10)];
	uint64_t read_size = sizes[rng_range(&m->rng, 0, 10)];
	struct plan_script body = *s;

	s->n = 0;
	if (write_size < tx / 3000)
		write_size = tx / 3000;
	if (read_size < rx / 3000)
		read_size = rx / 3000;
	if (tiny && rng_chance(&m->rng, 60))
		add(m, side, STEP_RCVBUF, rng_range(&m->rng, 2, 16) << 10, 0, 0);
	if (tiny && rng_chance(&m->rng, 60))
		add(m, side, STEP_SNDBUF, rng_range(&m->rng, 2, 16) << 10, 0, 0);
	/* A message in several segments would wait for a delayed ACK in every round. */
	if (s->rounds > 20 || rng_chance(&m->rng, 50))
		add(m, side, STEP_NODELAY, 0, 0, 0);
	if (rng_chance(&m->rng, 8)) {
		ms = rng_range(&m->rng, 1, 6);
		if (write_size < tx / 200)
			write_size = tx / 200;
		if (ms * (s->rounds + tx / write_size) < MAX_PAUSING_MS)
			add(m, side, STEP_WRITE_PAUSE, ms, 0, 0);
	}
	if (rng_chance(&m->rng, 12)) { /* a slow reader */
		ms = rng_range(&m->rng, 1, 6);
		if (read_size < rx / 300)
			read_size = rx / 300;
		if (ms * (s->rounds + rx / read_size) < MAX_PAUSING_MS)
			add(m, side, STEP_READ_PAUSE, ms, 0, 0);
	}
	add(m, side, STEP_WRITE_SIZE, write_size, 0, 0);
	add(m, side, STEP_READ_SIZE, read_size, 0, 0);
	if (m->plan->aborts == 1 - side)
		add(m, side, STEP_MAY_END, 0, 0, 0);
	memcpy(s->steps + s->n, body.steps, body.n * sizeof(body.steps[0]));
	s->n += body.n;
}

void plan_make(uint64_t seed, uint64_t id, struct plan *ret)
{
	struct maker m = { .rng = seed ^ (id * 0xd1342543de82ef95ULL), .plan = ret };
	uint64_t phases;
	bool tiny;

	memset(ret, 0, sizeof(*ret));
	rng_next(&m.rng);
	tiny = rng_chance(&m.rng, 12);
	m.cap = tiny ? 32 << 10 : 16 << 20;
	add(&m, PLAN_CLIENT, STEP_SEND, PLAN_HEADER_LEN, 0, 0);
	phases = rng_range(&m.rng, 0, 4);
	for (uint64_t i = 0; i < phases; i++) {
		uint64_t kind = rng_range(&m.rng, 0, 99);

		if (kind < 45)
			conversation(&m);
		else if (kind < 85)
			transfer(&m);
		else
			pause_step(&m);
	}
	ending(&m);
	pick_abort(&m);
	settings(&m, PLAN_CLIENT, tiny);
	settings(&m, PLAN_SERVER, tiny);
}

void plan_apply(const struct plan *plan, enum plan_side side, uint64_t seed, uint64_t id,
		uint64_t run, struct peer *p)
{
	const struct plan_script *s = &plan->side[side];
	uint64_t connection = id ^ (run << 32);
	struct pattern to_server, to_client;

	pattern_init(&to_server, seed, connection, PATTERN_TO_SERVER);
	pattern_init(&to_client, seed, connection, PATTERN_TO_CLIENT);
	plan_header(seed, id, run, to_server.head);
	to_server.head_len = PLAN_HEADER_LEN;
	p->tx = side == PLAN_CLIENT ? to_server : to_client;
	p->rx = side == PLAN_CLIENT ? to_client : to_server;
	memcpy(p->steps, s->steps, s->n * sizeof(s->steps[0]));
	p->n_steps = s->n;
	if (plan->aborts == side) {
		p->abort_tx = plan->abort_tx;
		p->abort_rx = plan->abort_rx;
	}
}

void plan_header(uint64_t seed, uint64_t id, uint64_t run, char *buf)
{
	/* Never longer than the line: 17 + 16 + 4 + 8 + 5 + 8 characters. */
	char text[PLAN_HEADER_LEN + 1];
	int n = snprintf(text, sizeof(text), "culvert-torture %016llx id %08llx run %08llx",
			 (unsigned long long)seed, (unsigned long long)(id & 0xffffffff),
			 (unsigned long long)(run & 0xffffffff));

	memset(text + n, '.', (size_t)(PLAN_HEADER_LEN - n));
	text[PLAN_HEADER_LEN - 1] = '\n';
	memcpy(buf, text, PLAN_HEADER_LEN);
}

int plan_parse_header(const char *buf, uint64_t seed, uint64_t *ret_id, uint64_t *ret_run)
{
	char text[PLAN_HEADER_LEN + 1], again[PLAN_HEADER_LEN + 1];
	unsigned long long s, id, run;

	memcpy(text, buf, PLAN_HEADER_LEN);
	text[PLAN_HEADER_LEN] = '\0';
	if (sscanf(text, "culvert-torture %16llx id %8llx run %8llx", &s, &id, &run) != 3)
		return -EINVAL;
	plan_header(s, id, run, again);
	if (memcmp(again, buf, PLAN_HEADER_LEN) != 0)
		return -EINVAL;
	if (s != seed)
		return -ESRCH;
	*ret_id = id;
	*ret_run = run;
	return 0;
}
