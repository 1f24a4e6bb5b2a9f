/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_NAMES_QUESTION_H
#define CULVERT_NAMES_QUESTION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop.h"
#include "config/endpoint.h"
#include "relay/resolver.h"

/*
 * What other threads have asked the thread of names.c, and wait for.  That thread alone touches the
 * list, and so they reach it by loop_call(); the one that waits looks at `done`, and at the reply
 * after that.
 */
struct question {
	struct question *next;
	const char *text; /* of an endpoint */
	bool passive;     /* to listen there */
	uint32_t id;
	struct resolver_reply reply;
	bool done; /* guarded by questions->lock */
};

/* The ids of questions have this bit, and those of other look-ups have not. */
#define QUESTION_ID (1U << 31)

struct questions {
	struct question *first;
	struct loop *loop; /* of the thread of names.c */
	const struct source *resolver; /* fd -1: it is gone */
	uint32_t last_id;
	bool given_up; /* nothing is looked up any more */
	pthread_mutex_t lock;
	pthread_cond_t answered;
};

void questions_open(struct questions *all, struct loop *loop, const struct source *resolver);
/* Nobody waits any more. */
void questions_close(struct questions *all);

/* By the thread of names.c: that numbered ID, or, if that is 0, all are answered by REPLY. */
void questions_settle(struct questions *all, uint32_t id, const struct resolver_reply *reply);

/*
 * By another thread, while that one runs: ask COUNT questions, and wait for the answers,
 * PATIENCE_MS at most; all are done then.
 */
void questions_ask(struct questions *all, struct question *questions, size_t count,
		   unsigned int patience_ms);
/* The same: all that wait, or ask later, are told -ECANCELED. */
void questions_give_up(struct questions *all);

/* By whoever is alone with Q: it is done, and this is how. */
void question_fail(struct question *q, int error, const char *why);
/* What an answered one comes to, as endpoint_parse() would say it. */
int question_result(const struct question *q, struct endpoint *ret, char *err, size_t errlen);

#endif
