/* SPDX-License-Identifier: BSD-2-Clause */
/* Scripts as text, and what is told of a peer. */
#include <err.h>
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
	if (p->n_steps == PEER_MAX_STEPS)
		errx(1, "bug in the test: more than %d steps", PEER_MAX_STEPS);
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
	errx(1, "bug in the test: script word \"%s\"", token);
}

void peer_script(struct peer *p, const char *text)
{
	char *copy = strdup(text), *save = NULL;

	for (char *t = strtok_r(copy, " ", &save); t; t = strtok_r(NULL, " ", &save))
		parse_word(p, t);
	free(copy);
}

void peer_describe(const struct peer *p, char *buf, size_t len)
{
	snprintf(buf, len, "%s: %s%s%s; sent %llu of %llu, received %llu of %llu%s%s; step %zu",
		 p->name, peer_result_name(p->result), p->why[0] ? ": " : "", p->why,
		 (unsigned long long)p->tx_off, (unsigned long long)p->tx_goal,
		 (unsigned long long)p->rx_off, (unsigned long long)p->rx_goal,
		 p->fin_sent ? ", FIN sent" : "", p->eof_seen ? ", EOF seen" : "", p->pos + 1);
}
