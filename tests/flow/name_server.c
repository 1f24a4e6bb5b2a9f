// SPDX-License-Identifier: BSD-2-Clause
#include "name_server.h"

#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "env.h"

#define NAMES_MAX 32
#define HELD_MAX 64
#define QUESTION_MAX 512
#define MESSAGE_MAX 4096
#define TEXT_MAX 512
#define HEADER 12
#define TYPE_A 1
#define TYPE_AAAA 28
#define SERVFAIL 2
#define NXDOMAIN 3

struct record {
	char name[128];
	char addresses[TEXT_MAX];
	bool exists;
	unsigned int mute_a, mute_aaaa; /* so many questions more are not answered */
};

struct held {
	struct sockaddr_storage from;
	socklen_t len;
	uint8_t msg[QUESTION_MAX];
	size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the next three */
static struct record records[NAMES_MAX];
static struct held held[HELD_MAX];
static size_t n_held;
static _Atomic int mode;
static _Atomic unsigned int asked;
static int sock;

unsigned int name_server_asked(void)
{
	return atomic_load(&asked);
}

/* The record of NAME, or an empty one.  With the lock. */
static struct record *find(const char *name)
{
	for (size_t i = 0; i < NAMES_MAX; i++)
		if (!records[i].name[0] || !strcasecmp(records[i].name, name))
			return &records[i];
	errx(1, "name server: too many names");
}

void name_server_set(const char *name, const char *addresses)
{
	struct record *r;

	pthread_mutex_lock(&lock);
	r = find(name);
	*r = (struct record){ .exists = addresses != NULL };
	snprintf(r->name, sizeof(r->name), "%s", name);
	snprintf(r->addresses, sizeof(r->addresses), "%s", addresses ?: "");
	pthread_mutex_unlock(&lock);
}

void name_server_mute(const char *name, unsigned int a, unsigned int aaaa)
{
	pthread_mutex_lock(&lock);
	find(name)->mute_a = a;
	find(name)->mute_aaaa = aaaa;
	pthread_mutex_unlock(&lock);
}

/* The name of the question, with dots; returns the length of it in the message, or 0. */
static size_t read_name(const uint8_t *msg, size_t len, char *name, size_t size)
{
	size_t at = HEADER, n = 0;

	while (at < len && msg[at]) {
		size_t label = msg[at++];

		if (label > 63 || at + label >= len || n + label + 2 > size)
			return 0;
		if (n)
			name[n++] = '.';
		memcpy(name + n, msg + at, label);
		n += label;
		at += label;
	}
	name[n] = '\0';
	return at + 5 <= len ? at + 1 - HEADER : 0;
}

static size_t add_answer(uint8_t *msg, size_t at, unsigned int type, const void *address,
			 size_t size)
{
	/* name: see the question; type; class; time to live of a second; length */
	const uint8_t head[] = {
		0xc0, HEADER, 0, (uint8_t)type, 0, 1, 0, 0, 0, 1, 0, (uint8_t)size
	};

	memcpy(msg + at, head, sizeof(head));
	memcpy(msg + at + sizeof(head), address, size);
	return at + sizeof(head) + size;
}

/* All addresses of R that are of TYPE. */
static size_t add_answers(uint8_t *msg, size_t at, unsigned int type, const struct record *r)
{
	char text[TEXT_MAX], *rest, *word;
	unsigned int n = 0;

	snprintf(text, sizeof(text), "%s", r->addresses);
	for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		uint8_t address[16];
		bool six = strchr(word, ':') != NULL;

		if (six != (type == TYPE_AAAA) ||
		    inet_pton(six ? AF_INET6 : AF_INET, word, address) != 1)
			continue;
		at = add_answer(msg, at, type, address, six ? 16 : 4);
		n++;
	}
	msg[7] = (uint8_t)n;
	return at;
}

/* Is NAME one that hangs; or, of R, which may be NULL, this question? */
static bool is_muted(const char *name, struct record *r, unsigned int type)
{
	size_t len = strlen(name), hangs = strlen(NAMES_HANGS);
	unsigned int *left = !r                ? NULL :
			     type == TYPE_A    ? &r->mute_a :
			     type == TYPE_AAAA ? &r->mute_aaaa :
						 NULL;

	if (len > hangs && !strcasecmp(name + len - hangs, NAMES_HANGS))
		return true;
	if (!left || !*left)
		return false;
	--*left;
	return true;
}

/* Make the answer in place, with room for it.  Returns its length, or 0: not worth one. */
static size_t answer(uint8_t *msg, size_t len)
{
	struct record *r = NULL;
	char name[256];
	size_t n = len > HEADER ? read_name(msg, len, name, sizeof(name)) : 0;
	size_t at = HEADER + n + 4;
	unsigned int type;

	if (!n)
		return 0;
	type = (unsigned int)msg[HEADER + n] << 8 | msg[HEADER + n + 1];
	msg[2] = 0x85; /* answer, authoritative */
	msg[3] = 0x80;
	memset(msg + 6, 0, 6); /* no answer yet, no additional records */
	if (atomic_load(&mode) == NAMES_FAIL) {
		msg[3] |= SERVFAIL;
		return at;
	}
	for (size_t i = 0; i < NAMES_MAX && !r; i++)
		if (records[i].exists && !strcasecmp(records[i].name, name))
			r = &records[i];
	if (is_muted(name, r, type))
		return 0;
	if (!r)
		msg[3] |= NXDOMAIN;
	else if (type == TYPE_A || type == TYPE_AAAA)
		at = add_answers(msg, at, type, r);
	return at;
}

/* With the lock. */
static void send_answer(const struct held *q)
{
	uint8_t msg[MESSAGE_MAX];
	size_t size;

	memcpy(msg, q->msg, q->size);
	size = answer(msg, q->size);
	if (size && sendto(sock, msg, size, 0, (const struct sockaddr *)&q->from, q->len) < 0)
		perror("name server: sendto");
}

static void *serve(void *arg)
{
	for (;;) {
		struct held q = { .len = sizeof(q.from) };
		ssize_t n = recvfrom(sock, q.msg, sizeof(q.msg), 0, (struct sockaddr *)&q.from,
				     &q.len);

		if (n <= 0)
			continue;
		q.size = (size_t)n;
		pthread_mutex_lock(&lock);
		if (atomic_load(&mode) == NAMES_HOLD && n_held < HELD_MAX)
			held[n_held++] = q;
		else if (atomic_load(&mode) != NAMES_SILENT)
			send_answer(&q);
		pthread_mutex_unlock(&lock);
		atomic_fetch_add(&asked, 1);
	}
	return arg;
}

void name_server_mode(enum name_server_mode m)
{
	pthread_mutex_lock(&lock);
	atomic_store(&mode, m);
	for (size_t i = 0; m != NAMES_HOLD && m != NAMES_SILENT && i < n_held; i++)
		send_answer(&held[i]);
	if (m != NAMES_HOLD)
		n_held = 0;
	pthread_mutex_unlock(&lock);
}

/* TEXT in the place of PATH, for this mount namespace. */
static void put_file(const char *path, const char *text)
{
	char own[256];

	snprintf(own, sizeof(own), "%s/%s", env_dir(), strrchr(path, '/') + 1);
	if (!env_put(own, text))
		err(1, "name server: %s", own);
	if (access(path, F_OK)) { /* a machine without one: it is not touched */
		printf("skip: no %s\n", path);
		exit(EXIT_SKIP);
	}
	if (mount(own, path, NULL, MS_BIND, NULL))
		err(1, "name server: %s", path);
}

void name_server_start(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons(53),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t thread;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		err(1, "name server: mount namespace");
	/* one try of half a minute: who is told nothing hangs */
	put_file("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n");
	put_file("/etc/nsswitch.conf", "hosts: files dns\nservices: files\npasswd: files\n"
				       "group: files\n");
	put_file("/etc/hosts", "127.0.0.1 localhost\n");
	sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0 || bind(sock, (struct sockaddr *)&in, sizeof(in)))
		err(1, "name server: 127.0.0.1:53");
	errno = pthread_create(&thread, NULL, serve, NULL);
	if (errno)
		err(1, "name server: thread");
}
