/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NAMES_QUESTION_H
#define CULVERT_NAMES_QUESTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "addr.h"
#include "resolver.h"

/*
 * What other threads have asked the thread of names.c, and wait for.  That thread alone touches the
 * list; the one that waits looks at `done`, and at the reply after that.
 */
struct question {
	struct question *next;
	const char *text;
	bool passive;
	uint32_t id;
	struct resolver_reply reply;
	bool done; /* guarded by questions->lock */
};

struct questions {
	struct question *first;
	pthread_mutex_t lock;
	pthread_cond_t answered;
};

void questions_open(struct questions *all);
/* Nobody waits any more. */
void questions_close(struct questions *all);

/* By the thread of names.c: Q has been asked; nobody waits for it any more. */
void question_add(struct questions *all, struct question *q);
void question_withdraw(struct questions *all, struct question *q);
/* That numbered ID, or, if that is 0, all are answered by REPLY. */
void questions_settle(struct questions *all, uint32_t id, const struct resolver_reply *reply);

/* By the thread that asked.  False: for RESOLVER_PATIENCE_MS, and a little more, nothing came. */
bool question_await(struct questions *all, struct question *q);
/* What an answered one comes to, as endpoint_parse() would say it. */
int question_result(const struct question *q, struct endpoint *ret, char *err, size_t errlen);

#endif
