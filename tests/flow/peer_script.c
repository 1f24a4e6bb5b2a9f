/* SPDX-License-Identifier: BSD-2-Clause */
/* Scripts as text, in and out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "peer.h"

/* Longer words before their own prefixes: the first match wins. */
static const struct word {
	const char *text;
	enum step_op op;
	int args;
} words[] = {
	{ "wp", STEP_WRITE_PAUSE, 1 }, { "dp", STEP_READ_PAUSE, 1 },  { "rb", STEP_RCVBUF, 1 },
	{ "sb", STEP_SNDBUF, 1 },      { "nd", STEP_NODELAY, 0 },     { "may", STEP_MAY_END, 0 },
	{ "end", STEP_MUST_END, 0 },   { "rst", STEP_MUST_RESET, 0 }, { "w", STEP_WRITE_SIZE, 1 },
	{ "d", STEP_READ_SIZE, 1 },    { "A", STEP_ACCEPT, 0 },       { "S", STEP_SEND, 1 },
	{ "L", STEP_LAST, 1 },         { "O", STEP_OOB, 0 },          { "R", STEP_RECV, 1 },
	{ "B", STEP_BOTH, 2 },         { "G", STEP_PING, 3 },         { "H", STEP_PONG, 3 },
	{ "F", STEP_FIN, 0 },          { "E", STEP_EOF, 0 },          { "Z", STEP_RESET, 0 },
	{ "P", STEP_PAUSE, 1 },        { "T", STEP_HOOK, 0 },
};

#define N_WORDS (sizeof(words) / sizeof(words[0]))

static void add_step(struct peer *p, enum step_op op, uint64_t a, uint64_t b, uint64_t c)
{
	if (p->n_steps == PEER_MAX_STEPS) {
		fprintf(stderr, "bug in the test: more than %d steps\n", PEER_MAX_STEPS);
		abort();
	}
	p->steps[p->n_steps++] = (struct step){ .op = op, .a = a, .b = b, .c = c };
}

static void parse_word(struct peer *p, char *token)
{
	uint64_t arg[3] = { 0 };
	char *save = NULL, *text;
	int n = 0;

	for (size_t i = 0; i < N_WORDS; i++) {
		size_t len = strlen(words[i].text);

		if (strncmp(token, words[i].text, len) != 0)
			continue;
		text = strtok_r(token + len, ":", &save);
		for (; text && n < 3; text = strtok_r(NULL, ":", &save))
			arg[n++] = parse_bytes(text);
		if (n != words[i].args)
			break;
		add_step(p, words[i].op, arg[0], arg[1], arg[2]);
		return;
	}
	fprintf(stderr, "bug in the test: script word \"%s\"\n", token);
	abort();
}

void peer_script(struct peer *p, const char *text)
{
	char *copy = strdup(text), *save = NULL;

	for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save))
		parse_word(p, t);
	free(copy);
}

static const struct word *find_word(enum step_op op)
{
	for (size_t i = 0; i < N_WORDS; i++)
		if (words[i].op == op)
			return &words[i];
	return &words[0]; /* cannot happen: the table has every op */
}

/* The script of P, with a mark at the step where it is. */
static void format_script(const struct peer *p, char *buf, size_t len)
{
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < p->n_steps && at + 1 < len; i++) {
		const struct word *w = find_word(p->steps[i].op);
		const uint64_t arg[3] = { p->steps[i].a, p->steps[i].b, p->steps[i].c };
		int r = snprintf(buf + at, len - at, "%s%s%s", i ? " " : "", i == p->pos ? ">" : "",
				 w->text);

		at += (size_t)r;
		for (int k = 0; k < w->args && k < 3 && at + 1 < len; k++) {
			r = snprintf(buf + at, len - at, "%s%llu", k ? ":" : "",
				     (unsigned long long)arg[k]);
			at += (size_t)r;
		}
	}
}

void peer_describe(const struct peer *p, char *buf, size_t len)
{
	char script[480];

	format_script(p, script, sizeof(script));
	snprintf(buf, len, "%s: %s%s%s; sent %llu of %llu, received %llu of %llu%s%s; %s", p->name,
		 peer_result_name(p->result), p->why[0] ? ": " : "", p->why,
		 (unsigned long long)p->tx_off, (unsigned long long)p->tx_goal,
		 (unsigned long long)p->rx_off, (unsigned long long)p->rx_goal,
		 p->fin_sent ? ", FIN sent" : "", p->eof_seen ? ", EOF seen" : "", script);
}
