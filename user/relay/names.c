// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the main thread's event loop drives c-ares.  One mutex guards the list of
 * names and c-ares' channel.  Another thread that wants something sets a flag or changes the list,
 * and wakes the loop; only the loop's thread begins look-ups and takes answers.
 *
 *   worker ── lookup->wanted, loop_wake() ──▶ main thread ── c-ares ──▶ name server
 *     ▲                                           │
 *     └────────────── lookup->list ◀──────────────┘
 *
 * c-ares can cancel all its questions, but not a single one.  So if a name is closed during its
 * look-up, all questions are cancelled, and those of the other names are asked again.
 *
 * One timer serves all names.  names_after_batch() goes through the list and begins the look-ups
 * that are due, but few at a time, so thousands of names do not flood the name server.  The number
 * of look-ups under way has no limit, so names that hang hold up no others.
 *
 * Files: the process is confined once it serves, and can open no file any more.  c-ares reads
 * /etc/resolv.conf when its channel is made, before the process is confined.  c-ares would read
 * /etc/hosts for each look-up, so culvert keeps the text of that file.  At a reload the privileged
 * process opens both files.  The channel stays, since a new one would need files, too
 * (/dev/urandom).
 */
#include "relay/names.h"

#include <ares.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "config/conflicts.h"

/* c-ares: the sockets to name servers, and those that tell which addresses have a route. */
SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_DGRAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, SOCK_STREAM)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_GETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFL)),
	SYSCALL_IF(PART_NAMES, fcntl, SYSCALL_ARG(1, F_SETFD)),
	SETSOCKOPT_IF(PART_NAMES, IPPROTO_TCP, TCP_NODELAY), SYSCALL(connect), SYSCALL(getsockname),
	SYSCALL(sendto), SYSCALL(recvfrom), SYSCALL(writev), SYSCALL(close));

const char *const names_files[NAMES_FILES] = { "/etc/hosts", "/etc/resolv.conf" };

#define ADDRS_MAX 64 /* of a name */

/*
 * A name server is asked again after this time, and given up after twice this time.  So a server
 * that is silent about one family costs less than the default connect-timeout.
 */
#define ANSWER_MS 700
#define TRIES 2
/* The time after which a failed look-up is repeated, if the name's interval is not shorter. */
#define RETRY_MS 5000
/* Look-ups begun at a time, and the pause before the next ones. */
#define AT_ONCE 64
#define PAUSE_MS 10
/* How often c-ares looks for answers that are late, while there are questions. */
#define TICK_MS 100

/* --- lists of addresses --- */

/*
 * RFC 8305, section 4: c-ares has sorted the addresses (RFC 6724).  Keep that order within each
 * family, and let the families take turns, beginning with that of the first address.
 */
static void sort(const struct addr *in, struct addr *out, size_t n)
{
	size_t done = 0;

	for (size_t turn = 0; done < n; turn++) {
		size_t nth = 0;

		for (size_t i = 0; i < n; i++) {
			bool other = in[i].ss.ss_family != in[0].ss.ss_family;

			if (other == turn % 2 && nth++ == turn / 2)
				out[done++] = in[i];
		}
	}
}

struct addr_list *addr_list_new(const struct addr *addrs, size_t n)
{
	struct addr_list *list = malloc(sizeof(*list) + n * sizeof(*addrs));

	if (!list)
		return NULL;
	atomic_init(&list->refs, 1);
	list->n = n;
	sort(addrs, list->addrs, n);
	return list;
}

struct addr_list *addr_list_get(struct addr_list *list)
{
	atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
	return list;
}

void addr_list_put(struct addr_list *list)
{
	if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
		free(list);
}

static bool has(const struct addr *addrs, size_t n, const struct addr *a)
{
	for (size_t i = 0; i < n; i++)
		if (addr_equal(&addrs[i], a))
			return true;
	return false;
}

/* Neither list has an address twice, so one direction is enough. */
static bool same_set(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (!has(b->addrs, b->n, &a->addrs[i]))
			return false;
	return a->n == b->n;
}

/* --- look-ups --- */

static void names_remove(struct lookup *l);

int lookup_open(struct lookup *l, const struct forward_conf *fc, const struct endpoint *conf,
		uint64_t now_ms)
{
	*l = (struct lookup){
		.forward = fc,
		.conf = conf,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.list = addr_list_new(conf->addrs, conf->n_addrs),
		.record.resolved_ms = now_ms,
	};
	return l->list ? 0 : -ENOMEM;
}

void lookup_close(struct lookup *l)
{
	names_remove(l); /* from here on the main thread does not change it any more */
	addr_list_put(l->list);
	l->list = NULL;
}

struct addr_list *lookup_get(struct lookup *l)
{
	struct addr_list *list;

	pthread_mutex_lock(&l->lock);
	list = addr_list_get(l->list);
	pthread_mutex_unlock(&l->lock);
	return list;
}

void lookup_record(struct lookup *l, struct lookup_record *ret)
{
	pthread_mutex_lock(&l->lock);
	*ret = l->record;
	pthread_mutex_unlock(&l->lock);
}

static bool is_acceptable(const struct lookup *l, const struct addr *a)
{
	if (!addr_is_inet(a) || !addr_port(a))
		return false;
	for (size_t i = 0; i < l->forward->listen.n_addrs; i++)
		if (addr_leads_to(a, &l->forward->listen.addrs[i]))
			return false;
	return true;
}

void lookup_inherit(struct lookup *l, struct lookup *before)
{
	struct addr_list *list = lookup_get(before), *other = l->list;
	bool good = true;

	for (size_t i = 0; l->conf->named && i < list->n; i++)
		good = good && is_acceptable(l, &list->addrs[i]);
	if (good) {
		l->list = list;
		lookup_record(before, &l->record);
	}
	addr_list_put(good ? other : list);
}

bool lookup_update(struct lookup *l, struct addr *addrs, size_t n, const char *why, uint64_t now_ms)
{
	struct addr_list *list = NULL, *old = NULL;
	size_t n_good = 0;
	bool news;

	for (size_t i = 0; i < n; i++)
		if (is_acceptable(l, &addrs[i]) && !has(addrs, n_good, &addrs[i]))
			addrs[n_good++] = addrs[i];
	if (n_good)
		list = addr_list_new(addrs, n_good);
	if (n)
		why = n_good ? "out of memory" : "its only address is the listener of this forward";
	pthread_mutex_lock(&l->lock);
	l->record.lookups++;
	l->record.ended_ms = now_ms;
	if (list) {
		old = l->list;
		news = !same_set(list, old);
		l->list = list;
		l->record.resolved_ms = now_ms;
		l->record.why[0] = '\0';
	} else {
		news = strncmp(l->record.why, why, sizeof(l->record.why) - 1) != 0;
		l->record.failures++;
		snprintf(l->record.why, sizeof(l->record.why), "%s", why);
	}
	pthread_mutex_unlock(&l->lock);
	addr_list_put(old);
	return news;
}

/* --- looking names up --- */

struct names {
	struct loop *loop;
	struct timer timer;
	uint64_t begin_ms;     /* no look-up begins before; see AT_ONCE */
	struct source sockets; /* an epoll of c-ares' sockets */

	pthread_mutex_t lock; /* of all that follows */
	ares_channel channel;
	char *hosts; /* the text of /etc/hosts; NULL: none */
	LIST_HEAD(lookup_list, lookup) lookups;
};

bool names_needed(const struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++)
		for (size_t j = 0; j < c->forwards[i].upstream.n; j++)
			if (c->forwards[i].upstream.servers[j].at.named)
				return true;
	return false;
}

static void say(const struct lookup *l)
{
	const struct addr *first = &l->list->addrs[0];
	char text[ADDR_STRLEN];

	if (l->record.why[0]) {
		log_limited(LOG_WARNING,
			    l->list->n ?
				    "upstream %s keeps its last addresses: %s" :
				    "upstream %s has no address yet, so its clients are reset: %s",
			    l->conf->text, l->record.why);
		return;
	}
	log_info("upstream %s is now %s%s", l->conf->text,
		 addr_format(&first->sa, first->len, text, sizeof(text)),
		 l->list->n > 1 ? " and others" : "");
}

/* Only this thread changes the list and the record: no lock is needed to look at them. */
static void finish(struct lookup *l, struct addr *addrs, size_t n, const char *why)
{
	uint64_t now = clock_ms(), wait = l->forward->resolve_interval_ms;

	atomic_store(&l->wanted, false); /* sessions that have asked meanwhile get this answer */
	if (lookup_update(l, addrs, n, why, now))
		say(l);
	if (l->record.why[0])
		wait = smaller(wait, RETRY_MS);
	/* up to an eighth less, so that the look-ups spread out in time */
	l->due_ms = now + wait - (uint64_t)random() % (wait / 8 + 1);
}

/* Called by c-ares for each look-up once, also by ares_cancel(). */
static void on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *answer)
{
	const struct ares_addrinfo_node *node = answer ? answer->nodes : NULL;
	struct addr addrs[ADDRS_MAX];
	char why[LOOKUP_WHY_LEN];
	struct lookup *l = arg;
	size_t n = 0;

	(void)timeouts;
	l->open = false;
	if (status == ARES_ECANCELLED)
		return;
	for (; node && n < ADDRS_MAX; node = node->ai_next) {
		struct addr a = { .len = node->ai_addrlen };

		memcpy(&a.ss, node->ai_addr, node->ai_addrlen);
		addr_set_port(&a, l->conf->named_port);
		addrs[n++] = addr_unmapped(&a);
	}
	ares_freeaddrinfo(answer);
	snprintf(why, sizeof(why), "host name lookup failed: %s", ares_strerror(status));
	finish(l, addrs, n, why);
}

/* The addresses that HOSTS has for NAME: lines are "127.0.0.1 localhost loopback # comment". */
static size_t find_host(const char *hosts, const char *name, in_port_t port, struct addr *ret)
{
	char *text = strdup(hosts ?: ""), *rest = text, *line, *address, *word;
	size_t n = 0;

	while (text && n < ADDRS_MAX && (line = strsep(&rest, "\n"))) {
		line[strcspn(line, "#")] = '\0';
		address = strtok_r(line, " \t\r", &line);
		do
			word = strtok_r(NULL, " \t\r", &line);
		while (word && strcasecmp(word, name) != 0);
		if (word && !addr_parse_host(address, &ret[n]))
			addr_set_port(&ret[n++], port);
	}
	free(text);
	return n;
}

static void look_up(struct lookup *l)
{
	const struct ares_addrinfo_hints hints = { .ai_family = AF_UNSPEC,
						   .ai_socktype = SOCK_STREAM };
	char host[sizeof(l->conf->text)];
	struct addr addrs[ADDRS_MAX];
	size_t n;

	snprintf(host, sizeof(host), "%.*s", (int)strcspn(l->conf->text, ":"), l->conf->text);
	l->asked_ms = l->names->loop->now_ms;
	n = find_host(l->names->hosts, host, l->conf->named_port, addrs);
	if (n) {
		finish(l, addrs, n, NULL);
		return;
	}
	l->open = true;
	ares_getaddrinfo(l->names->channel, host, NULL, &hints, on_answer, l);
}

/* Begin the look-ups that are due, let c-ares look for answers that are late, and set the timer. */
void names_after_batch(struct names *n)
{
	uint64_t now = n->loop->now_ms, next = NEVER;
	unsigned int begun = 0;
	struct lookup *l;

	pthread_mutex_lock(&n->lock);
	ares_process_fd(n->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	LIST_FOREACH(l, &n->lookups, in_names) {
		if (!l->open && atomic_load(&l->wanted))
			l->due_ms = smaller(l->due_ms, l->asked_ms + LOOKUP_ASK_MS);
		if (!l->open && l->due_ms <= now && now >= n->begin_ms) {
			look_up(l);
			if (++begun == AT_ONCE)
				n->begin_ms = now + PAUSE_MS;
		}
		next = smaller(next, l->open ? now + TICK_MS : l->due_ms);
	}
	next = larger(next, now + PAUSE_MS);
	/* batches may come so often that the timer would never fire if each put it off */
	if (next != NEVER && (!n->timer.prev || next < n->timer.due_ms))
		timer_set(n->loop, &n->timer, next);
	pthread_mutex_unlock(&n->lock);
}

static void on_sockets(struct source *source, uint32_t events)
{
	struct names *n = container_of(source, struct names, sockets);
	struct epoll_event ready;

	(void)events;
	if (epoll_wait(source->fd, &ready, 1, 0) <= 0)
		return;
	pthread_mutex_lock(&n->lock);
	ares_process_fd(n->channel, ready.data.fd, ready.data.fd);
	pthread_mutex_unlock(&n->lock);
}

/* c-ares wants to know when FD is readable or writable; neither: it is about to close FD. */
static void on_interest(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct names *n = arg;
	struct epoll_event want = { .events = (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0),
				    .data.fd = fd };

	if (!want.events)
		epoll_ctl(n->sockets.fd, EPOLL_CTL_DEL, fd, NULL);
	else if (epoll_ctl(n->sockets.fd, EPOLL_CTL_MOD, fd, &want))
		epoll_ctl(n->sockets.fd, EPOLL_CTL_ADD, fd, &want);
}

/* --- calls by other threads --- */

void names_add(struct names *n, struct lookup *l)
{
	if (!n || !l->conf->named)
		return;
	l->names = n;
	pthread_mutex_lock(&n->lock);
	LIST_INSERT_HEAD(&n->lookups, l, in_names);
	pthread_mutex_unlock(&n->lock);
	loop_wake(n->loop);
}

static void names_remove(struct lookup *l)
{
	struct names *n = l->names;

	if (!n)
		return;
	pthread_mutex_lock(&n->lock);
	LIST_REMOVE(l, in_names);
	if (l->open)
		ares_cancel(n->channel);
	pthread_mutex_unlock(&n->lock);
	l->names = NULL;
	loop_wake(n->loop);
}

bool lookup_failed(struct lookup *l, uint64_t *seen, uint64_t now_ms)
{
	struct lookup_record record;

	if (!l->names)
		return false;
	if (!*seen)
		*seen = clock_ms();
	lookup_record(l, &record);
	if (!atomic_exchange(&l->wanted, true))
		loop_wake(l->names->loop);
	return record.ended_ms < *seen && now_ms >= record.resolved_ms + LOOKUP_ASK_MS;
}

/* --- beginning and end --- */

/* Read the text of FD, and close FD.  NULL: there is no text. */
static char *read_text(int fd)
{
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char *text = NULL;
	size_t size = 0;

	if (f && getdelim(&text, &size, '\0', f) < 0) {
		free(text);
		text = NULL;
	}
	if (f)
		fclose(f);
	return text;
}

/* Take the lines "nameserver 127.0.0.1" of RESOLV. */
static void set_servers(struct names *n, char *resolv)
{
	char servers[512] = "", server[64], *line;
	size_t len = 0;

	while ((line = strsep(&resolv, "\n")))
		if (sscanf(line, "nameserver %63s", server) == 1 && len < sizeof(servers))
			len += (size_t)snprintf(servers + len, sizeof(servers) - len, "%s%s",
						len ? "," : "", server);
	if (len && ares_set_servers_csv(n->channel, servers))
		log_warning(
			"%s: \"%s\" names no name server that can be used; the others stay in use",
			names_files[1], servers);
}

/* Look-ups under way are cancelled, and begin again, perhaps at other name servers. */
void names_read_again(struct names *n, const int fds[NAMES_FILES])
{
	char *resolv = read_text(fds[1]);
	struct lookup *l;

	pthread_mutex_lock(&n->lock);
	free(n->hosts);
	n->hosts = read_text(fds[0]);
	ares_cancel(n->channel);
	set_servers(n, resolv);
	LIST_FOREACH(l, &n->lookups, in_names)
		l->due_ms = 0;
	pthread_mutex_unlock(&n->lock);
	free(resolv);
	loop_wake(n->loop);
}

int names_open(struct loop *loop, struct names **ret, char *err, size_t errlen)
{
	struct names *n = allocated(calloc(1, sizeof(*n)));
	char lookups[] = "b"; /* DNS alone: see find_host() */
	struct ares_options o = { .lookups = lookups,
				  .timeout = ANSWER_MS,
				  .tries = TRIES,
				  .sock_state_cb = on_interest,
				  .sock_state_cb_data = n };
	int options = ARES_OPT_LOOKUPS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
		      ARES_OPT_SOCK_STATE_CB;
	int status;

	*ret = n;
	*n = (struct names){
		.loop = loop,
		.sockets = { .handle = on_sockets, .fd = epoll_create1(EPOLL_CLOEXEC) },
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	status = ares_library_init(ARES_LIB_INIT_ALL);
	status = status ?: ares_init_options(&n->channel, &o, options);
	if (status || n->sockets.fd < 0 || loop_watch(loop, &n->sockets, EPOLLIN, true)) {
		snprintf(err, errlen, "cannot look up host names: %s",
			 status ? ares_strerror(status) : strerror(errno));
		return -EIO;
	}
	n->hosts = read_text(open(names_files[0], O_RDONLY | O_CLOEXEC));
	return 0;
}

/* --- names to listen at --- */

int names_find_listeners(struct config *c, bool confined)
{
	char why[LOOKUP_WHY_LEN] = "a name to listen at is looked up at the start only: restart "
				   "culvert, or write the address";

	for (struct forward_conf *fc = c->forwards; fc < c->forwards + c->n_forwards; fc++) {
		int r;

		if (fc->listen.n_addrs || fc->sni)
			continue;
		r = confined ? -EINVAL : endpoint_look_up(&fc->listen, true, why, sizeof(why));
		if (r) {
			conflicts_complain_address(fc, true, why);
			return r;
		}
	}
	return conflicts_of_addresses(c);
}
