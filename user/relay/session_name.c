// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_name.h"

#include "base/log.h"
#include "relay/session_connect.h"

void session_name_expect(struct session *s)
{
	s->worker->n_nameless++;
}

void session_name_forget(struct session *s)
{
	if (session_is_nameless(s))
		s->worker->n_nameless--;
}

bool session_is_nameless(const struct session *s)
{
	return s->state == SESSION_CONNECTING && !s->addrs;
}

bool session_name_found(struct session *s)
{
	int r = upstream_await(&s->forward->upstream, &s->connecting->lookups_seen, &s->addrs);

	if (r < 0)
		session_name_give_up(s);
	if (r > 0)
		s->worker->n_nameless--;
	return r > 0;
}

void session_name_give_up(struct session *s)
{
	struct lookup_record record;

	upstream_record(&s->forward->upstream, &record);
	log_limited(LOG_WARNING, "session %llu, forward %s: upstream %s has no address: %s",
		    (unsigned long long)s->id, forward_name(forward_of(s)), upstream_of(s)->text,
		    record.why[0] ? record.why : "its look-up was not over in connect-timeout");
	session_reset(s, CAUSE_NO_ADDRESS);
}

/* Those that wait are young, and so at the list's beginning: it is not gone through in vain. */
void session_name_news(struct worker *w, void (*look)(struct session *s))
{
	uint64_t news = atomic_load_explicit(&w->shared->name_news, memory_order_acquire);
	unsigned int left = w->n_nameless;
	struct session *s = w->sessions, *next;

	if (news == w->news_seen)
		return;
	w->news_seen = news;
	for (; left && s; s = next) {
		next = s->next;
		if (!session_is_nameless(s))
			continue;
		left--;
		look(s);
	}
}
