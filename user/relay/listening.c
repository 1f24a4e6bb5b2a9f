// SPDX-License-Identifier: BSD-2-Clause
#include "relay/listening.h"

#include <errno.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"
#include "base/advice.h"
#include "relay/given.h"
#include "relay/listen_socket.h"
#include "relay/socket_options.h"

SYSCALLS_NEEDED(
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ATTACH_REUSEPORT_CBPF)),
	SYSCALL(close),
	SYSCALL(shutdown),
	SYSCALL(unlink), /* unix sockets */
	SYSCALL(unlinkat));

static int make_self(void *arg, const struct forward_conf *fc, struct addr *a, bool joins,
		     unsigned int n, int *fds, char *err, size_t errlen)
{
	int r = joins ? 0 : listen_socket_make_room(fc, a);
	unsigned int i = 0;

	(void)arg;
	for (; !r && i < n; i++) {
		r = listen_socket_open(fc, a, true, &fds[i]);
		if (r)
			break;
		listen_socket_learn_port(a, fds[i]); /* all must have that of the first */
	}
	if (!r)
		return 0;
	while (i-- > 0)
		close(fds[i]);
	snprintf(err, errlen, "%s%s", strerror(-r), advice_listen(-r));
	return r;
}

const struct listening_maker listening_by_self = { make_self, NULL };

static struct listening *new_listening(const struct addr *a, unsigned int n)
{
	struct listening *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->asked = l->addr = *a;
	l->shared = !addr_is_inet(a);
	l->n_workers = n;
	l->fds = malloc(n * sizeof(*l->fds));
	if (!l->fds) {
		free(l);
		return NULL;
	}
	memset(l->fds, 0xff, n * sizeof(*l->fds));
	return l;
}

static void remove_file(const struct addr *a)
{
	const struct sockaddr_un *un = (const struct sockaddr_un *)&a->ss;

	if (un->sun_path[0] && unlink(un->sun_path) && errno != ENOENT)
		log_info("%s stays: %s; the next start will replace it", un->sun_path,
			 strerror(errno));
}

/*
 * The privileged process, which has made it, may not have come to close its own descriptor yet: so
 * it is told that this one is over, or it would take connections until then.
 */
static void close_own(int fd)
{
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

void listening_close(struct listening *l)
{
	if (!l)
		return;
	if (l->given && l->fds[0] >= 0) {
		close(l->fds[0]);
	} else if (l->shared && l->fds[0] >= 0) {
		close_own(l->fds[0]);
		remove_file(&l->addr);
	}
	for (unsigned int w = 0; !l->shared && w < l->n_workers; w++)
		if (l->fds[w] >= 0)
			close_own(l->fds[w]);
	free(l->fds);
	free(l);
}

void listening_close_all(struct listening *list)
{
	while (list) {
		struct listening *next = list->next;

		listening_close(list);
		list = next;
	}
}

/* Has systemd opened a socket for it?  -ENOENT: no. */
static int take_given(struct listening *l, const struct forward_conf *fc, char *err, size_t errlen)
{
	int fd = given_open(&l->addr), r = fd < 0 ? fd : 0;

	if (!r)
		r = listen_socket_set_options(fd, fc, &l->addr);
	if (!r) {
		l->given = l->shared = true;
		l->fds[0] = fd;
	} else if (fd >= 0) {
		close(fd);
	}
	if (r && r != -ENOENT)
		snprintf(err, errlen, "systemd's socket: %s", strerror(-r));
	return r;
}

int listening_open(const struct listening_maker *by, const struct forward_conf *fc,
		   const struct addr *a, bool joins, unsigned int n, struct listening **ret,
		   char *err, size_t errlen)
{
	struct listening *l = new_listening(a, n);
	int r;

	if (!l) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	r = take_given(l, fc, err, errlen);
	if (r == -ENOENT)
		r = by->make(by->arg, fc, &l->addr, joins, l->shared ? 1 : n, l->fds, err, errlen);
	if (r) {
		free(l->fds);
		free(l);
		return r;
	}
	for (unsigned int w = 1; l->shared && w < n; w++)
		l->fds[w] = l->fds[0];
	l->transparent = fc->transparent;
	*ret = l;
	return 0;
}

void listening_adopt(const struct listening *l, struct endpoint *e, struct addr *a)
{
	if (!addr_takes_any_port(a))
		return;
	*a = l->addr;
	if (e->n_addrs == 1)
		addr_format((struct sockaddr *)&a->ss, a->len, e->text, sizeof(e->text));
}

struct listening *listening_find(struct listening *list, const struct forward *f,
				 const struct addr *a)
{
	struct listening *found = NULL;

	for (; list; list = list->next) {
		if (list->leaving || !addr_equal(&list->asked, a))
			continue;
		if (list->forward == f)
			return list;
		found = list;
	}
	return found;
}

bool listening_fits(const struct listening *l, const struct forward_conf *fc)
{
	return !fc->transparent || l->transparent || l->given;
}

static int set_options(const struct listening *l, int fd, const struct forward_conf *fc)
{
	int r = listen_socket_set_options(fd, fc, &l->addr);

	if (!r && l->transparent && !l->given && !fc->transparent)
		r = socket_clear_transparent(fd, l->addr.ss.ss_family);
	return r;
}

void listening_set_options(struct listening *l, const struct forward_conf *fc)
{
	for (unsigned int w = 0; w < l->n_workers; w++) {
		int r = l->fds[w] < 0 ? 0 : set_options(l, l->fds[w], fc);

		if (r)
			log_warning("forward %s: what is accepted keeps its old options: %s",
				    forward_name(fc), strerror(-r));
	}
	l->transparent = l->transparent && fc->transparent;
}

/*
 * A program of the SO_REUSEPORT group picks a socket by its place there: workers' sockets are bound
 * in the order of their numbers.  At random, since a hash of the addresses is 0 for some devices'
 * packets.  A handshake is between its listener and the client from the SYN on; what is picked anew
 * (the last ACK with SYN cookies) is accepted by any of them.
 */
void listening_steer(const struct listening *l, unsigned int active)
{
	struct sock_filter pick[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM)),
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, active),
		BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, l->place),
		BPF_STMT(BPF_RET | BPF_A, 0),
	};
	const struct sock_fprog prog = { sizeof(pick) / sizeof(pick[0]), pick };

	if (l->shared || l->leaving || l->fds[0] < 0)
		return;
	if (setsockopt(l->fds[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog, sizeof(prog)))
		log_limited(LOG_WARNING, "new connections go to all workers, which costs some "
			    "speed and nothing else: %s%s", strerror(errno),
			    errno == ENOMEM ? " (net.core.optmem_max may be too small)" : "");
}

int listening_open_endpoint(const struct listening_maker *by, struct forward_conf *fc,
			    struct forward *f, unsigned int n, struct listening **list, char *err,
			    size_t errlen)
{
	struct endpoint *e = &fc->listen;
	char text[ADDR_STRLEN], why[256];

	for (size_t i = 0; i < e->n_addrs; i++) {
		struct listening *l;
		int r = listening_open(by, fc, &e->addrs[i], false, n, &l, why, sizeof(why));

		if (r) {
			addr_format((struct sockaddr *)&e->addrs[i].ss, e->addrs[i].len, text,
				    sizeof(text));
			snprintf(err, errlen, "cannot listen on %s: %s", text, why);
			return r;
		}
		listening_adopt(l, e, &e->addrs[i]);
		l->forward = f;
		l->next = *list;
		*list = l;
	}
	return 0;
}
