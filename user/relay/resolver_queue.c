// SPDX-License-Identifier: BSD-2-Clause
#include "relay/resolver_queue.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Of a look-up that is not answered: when runner number I begins beside the first, and for what. */
static const struct {
	unsigned int after_ms;
	int family;
} runners[QUEUE_RUNNERS] = {
	{ 0, AF_UNSPEC },
	{ RESOLVER_AGAIN_MS, AF_UNSPEC },
	{ RESOLVER_FAMILY_MS, AF_INET6 },
	{ RESOLVER_FAMILY_MS, AF_INET },
};

struct job *queue_add(struct queue *q, const struct resolver_request *r, uint64_t now_ms)
{
	size_t i = 0;

	if (q->n == QUEUE_JOBS)
		return NULL;
	while (q->jobs[i].used)
		i++;
	q->jobs[i] = (struct job){
		.used = true, .q = *r, .order = ++q->order,
		.rank = r->hung < QUEUE_RANK_MAX ? r->hung : QUEUE_RANK_MAX,
		.since_ms = now_ms, .due_ms = now_ms + RESOLVER_PATIENCE_MS, .next_ms = UINT64_MAX,
	};
	q->n++;
	return &q->jobs[i];
}

void queue_remove(struct queue *q, struct job *j)
{
	j->used = false;
	q->n--;
}

/* --- runners --- */

/* One to listen at needs all of its addresses: they are bound for good. */
static unsigned int runners_of(const struct job *j)
{
	return j->q.passive ? 2 : QUEUE_RUNNERS;
}

static void plan_next(struct job *j)
{
	j->next_ms = j->begun < runners_of(j) ? j->began_ms + runners[j->begun].after_ms :
						UINT64_MAX;
}

int queue_family(const struct job *j)
{
	return runners[j->begun].family;
}

struct runner *queue_begun(struct queue *q, struct job *j, struct runner r, uint64_t now_ms)
{
	struct runner *place = &j->runners[j->begun];

	*place = r;
	j->last_ms = now_ms;
	if (!j->begun++)
		j->began_ms = now_ms;
	q->running++;
	plan_next(j);
	return place;
}

void queue_ended(struct queue *q, struct runner *r)
{
	r->pid = 0;
	q->running--;
}

void queue_put_back(struct queue *q, struct job *j, uint64_t now_ms)
{
	j->begun = 0;
	j->since_ms = now_ms;
	j->next_ms = UINT64_MAX;
	j->order = ++q->order;
	if (j->rank < QUEUE_RANK_MAX)
		j->rank++;
}

static unsigned int runs(const struct job *j)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < j->begun; i++)
		n += j->runners[i].pid != 0;
	return n;
}

/* What one family alone does not have says nothing about the name. */
bool queue_settles(struct job *j, const struct runner *r, int error, const char *why,
		   uint64_t now_ms)
{
	bool whole = runners[r - j->runners].family == AF_UNSPEC;

	if (!error || (whole && error != -EAGAIN && error != -EIO)) {
		j->error = 0;
		return true;
	}
	if (whole || !j->error) {
		j->error = whole ? error : -EAGAIN;
		snprintf(j->why, sizeof(j->why), "%s", why);
	}
	if (now_ms - j->began_ms >= RESOLVER_FAMILY_MS)
		return !runs(j); /* it has been asked again and again */
	if (j->begun < runners_of(j))
		j->next_ms = now_ms;
	return !runs(j) && j->begun == runners_of(j);
}

bool queue_has_hung(const struct job *j, uint64_t now_ms)
{
	return j->begun && now_ms - j->began_ms >= RESOLVER_TURN_MS;
}

/* --- whose turn it is --- */

/* What a job is looked for with. */
struct quest {
	uint64_t now_ms;
	const struct job *waits; /* somebody is to give way to it */
	const struct job *wants; /* the same, of those that have extras */
};

/* Of the used ones that are PICK, the one that is BEFORE all others; or NULL. */
static struct job *find(struct queue *q, const struct quest *quest,
			bool (*pick)(const struct job *j, const struct quest *quest),
			bool (*before)(const struct job *a, const struct job *b))
{
	struct job *best = NULL;

	for (size_t i = 0, seen = 0; seen < q->n; i++) {
		struct job *j = &q->jobs[i];

		if (!j->used)
			continue;
		seen++;
		if (pick(j, quest) && (!best || before(j, best)))
			best = j;
	}
	return best;
}

/* Nobody works on it: it has not begun, or what has begun is over and more may be tried. */
static bool waits(const struct job *j, const struct quest *quest)
{
	(void)quest;
	return !runs(j);
}

static bool goes_before(const struct job *a, const struct job *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

/*
 * When J, which runs, is to give way to W.  One that was put back waits for a while before somebody
 * else is put back for it: else all that have had their turn would be begun anew, for one that came.
 */
static uint64_t turn_ends(const struct job *j, const struct job *w)
{
	unsigned int rank = j->rank > w->rank ? j->rank : w->rank;
	uint64_t end = j->began_ms + ((uint64_t)RESOLVER_TURN_MS << rank);
	uint64_t waited = w->rank ? w->since_ms + RESOLVER_TURN_MS : 0;

	if (j->rank > w->rank)
		return 0;
	return end > waited ? end : waited;
}

static bool gives_way(const struct job *j, const struct quest *quest)
{
	return runs(j) && quest->now_ms >= turn_ends(j, quest->waits);
}

static bool gives_way_before(const struct job *a, const struct job *b)
{
	return a->rank != b->rank ? a->rank > b->rank : a->began_ms < b->began_ms;
}

/* Places taken: each look-up under way has one, and what it has beyond that is an extra. */
static size_t taken(const struct queue *q)
{
	size_t n = 0;

	for (size_t i = 0, seen = 0; seen < q->n; i++) {
		seen += q->jobs[i].used;
		n += q->jobs[i].used && runs(&q->jobs[i]);
	}
	return n;
}

static struct queue_step make_room(struct queue *q, const struct quest *quest)
{
	struct job *j = find(q, quest, gives_way, gives_way_before);

	return (struct queue_step){ j ? QUEUE_PUT_BACK : QUEUE_NOTHING, j };
}

/* --- whose extras --- */

static bool wants_more(const struct job *j, const struct quest *quest)
{
	return runs(j) && j->next_ms <= quest->now_ms;
}

static bool wants_before(const struct job *a, const struct job *b)
{
	if (a->rank != b->rank)
		return a->rank < b->rank;
	return a->next_ms != b->next_ms ? a->next_ms < b->next_ms : a->order < b->order;
}

static bool gives_extras(const struct job *j, const struct quest *quest)
{
	const struct job *w = quest->wants;

	if (j == w || runs(j) < 2)
		return false;
	return j->rank > w->rank || quest->now_ms >= j->last_ms + RESOLVER_EXTRA_MS;
}

static bool gives_extras_before(const struct job *a, const struct job *b)
{
	return a->rank != b->rank ? a->rank > b->rank : a->last_ms < b->last_ms;
}

static struct queue_step next_extra(struct queue *q, struct quest *quest, size_t extras)
{
	struct job *w = find(q, quest, wants_more, wants_before), *j;

	if (!w || extras < RESOLVER_EXTRAS)
		return (struct queue_step){ w ? QUEUE_BEGIN : QUEUE_NOTHING, w };
	quest->wants = w;
	j = find(q, quest, gives_extras, gives_extras_before);
	return (struct queue_step){ j ? QUEUE_THIN : QUEUE_NOTHING, j };
}

/* --- all of it --- */

struct queue_step queue_next(struct queue *q, uint64_t now_ms)
{
	struct quest quest = { .now_ms = now_ms };
	struct job *j = find(q, &quest, waits, goes_before);
	size_t places = taken(q);
	struct queue_step step = { QUEUE_NOTHING, NULL };

	quest.waits = j;
	if (j && places < RESOLVER_AT_ONCE)
		return (struct queue_step){ QUEUE_BEGIN, j };
	if (j)
		step = make_room(q, &quest);
	return step.what ? step : next_extra(q, &quest, q->running - places);
}

/* What changes by itself about J, while quest->waits, or NULL, waits for a place. */
static uint64_t job_due(const struct job *j, const struct quest *quest)
{
	const struct job *w = quest->waits;
	uint64_t times[] = {
		j->due_ms, w && runs(j) ? turn_ends(j, w) : 0, j->next_ms,
		quest->wants && runs(j) > 1 ? j->last_ms + RESOLVER_EXTRA_MS : 0,
	};
	uint64_t due = UINT64_MAX;

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
		if ((!i || times[i] > quest->now_ms) && times[i] < due)
			due = times[i];
	return due;
}

uint64_t queue_due(struct queue *q, uint64_t now_ms)
{
	struct quest quest = { .now_ms = now_ms };
	uint64_t due = UINT64_MAX;

	quest.waits = find(q, &quest, waits, goes_before);
	quest.wants = find(q, &quest, wants_more, wants_before);
	for (size_t i = 0, seen = 0; seen < q->n; i++) {
		const struct job *j = &q->jobs[i];
		uint64_t own = j->used ? job_due(j, &quest) : UINT64_MAX;

		seen += j->used;
		due = own < due ? own : due;
	}
	return due;
}
