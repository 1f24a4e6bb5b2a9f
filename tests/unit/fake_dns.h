/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_FAKE_DNS_H
#define CULVERT_TESTS_FAKE_DNS_H

/*
 * getaddrinfo(3) as the test wants it, in the resolver's processes too: what it answers is in
 * memory that they share with the test.  Include after cmocka.h.
 *
 *   variable.test  what fake_dns->... says
 *   hang.test      never answers
 *   crash.test     kills its process
 *   server.test    10.X.Y.Z, where X.Y.Z is the pid of the process that has forked this one
 *   confined.test  10.0.0.0 if the process can do nothing that it should not; else 10.0.0.N
 *   exec.test      executes a program
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FAKE_MOST 80

struct fake_dns {
	_Atomic int error;       /* EAI_...; 0: the addresses */
	_Atomic unsigned int n;
	_Atomic uint32_t addrs[FAKE_MOST]; /* IPv4, host order */
	_Atomic unsigned int asked;
	_Atomic int hang; /* so many calls for variable.test do not return */
};

static struct fake_dns *fake_dns;

static inline int fake_dns_open(void **state)
{
	(void)state;
	fake_dns = mmap(NULL, sizeof(*fake_dns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			/* cppcheck-suppress invalidFunctionArg ; no file */
			-1, 0);
	return fake_dns == MAP_FAILED ? -1 : 0;
}

static inline void fake_dns_say(uint32_t address)
{
	atomic_store(&fake_dns->addrs[0], address);
	atomic_store(&fake_dns->n, 1);
	atomic_store(&fake_dns->error, 0);
}

/* One list at a time. */
static struct fake_answer {
	struct addrinfo ai;
	struct sockaddr_in in;
} fake_answers[FAKE_MOST + 1];
static unsigned int n_fake_answers;

static inline void fake_add(struct addrinfo **list, uint32_t address, uint16_t port)
{
	struct fake_answer *new = &fake_answers[n_fake_answers++];

	*new = (struct fake_answer){
		.ai = { .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&new->in,
			.ai_addrlen = sizeof(new->in) },
		.in = { .sin_family = AF_INET, .sin_port = htons(port),
			.sin_addr.s_addr = htonl(address) },
	};
	while (*list)
		list = &(*list)->ai_next;
	*list = &new->ai;
}

/* 0, or the number of what it can do and should not. */
static inline uint32_t fake_confinement(void)
{
	unsigned int above = 0;
	struct dirent *e;
	DIR *d;
	pid_t pid;

	if (!kill(getppid(), 0) || errno != EPERM)
		return 1;
	pid = fork();
	if (pid == 0)
		_exit(0);
	if (pid > 0 || errno != EPERM)
		return 2;
	if (geteuid() == 0)
		return 3;
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
		return 4;
	d = opendir("/proc/self/fd");
	while (d && (e = readdir(d)))
		above += e->d_name[0] != '.' && atoi(e->d_name) > 3 && atoi(e->d_name) != dirfd(d);
	if (!d || above)
		return 5;
	closedir(d);
	if (send(3, "x", 1, 0) >= 0 || errno != ENOTSOCK) /* a pipe, not the socket */
		return 6;
	if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
		return 7;
	return 0;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
		struct addrinfo **ret)
{
	uint16_t port = (uint16_t)strtoul(service, NULL, 10);
	int error = 0;

	(void)hints;
	*ret = NULL;
	atomic_fetch_add(&fake_dns->asked, 1);
	if (!strcmp(host, "hang.test")) {
		for (;;)
			pause();
	} else if (!strcmp(host, "crash.test")) {
		signal(SIGILL, SIG_DFL); /* a sanitizer may have it */
		__builtin_trap();
	} else if (!strcmp(host, "exec.test")) {
		execl("/bin/true", "true", NULL);
		_exit(0);
	} else if (!strcmp(host, "server.test")) {
		fake_add(ret, 0x0a000000 | (uint32_t)getppid(), port);
	} else if (!strcmp(host, "confined.test")) {
		fake_add(ret, 0x0a000000 | fake_confinement(), port);
	} else if (!strcmp(host, "variable.test")) {
		if (atomic_fetch_sub(&fake_dns->hang, 1) > 0)
			pause();
		atomic_store(&fake_dns->hang, 0);
		error = atomic_load(&fake_dns->error);
		for (unsigned int i = 0; !error && i < atomic_load(&fake_dns->n); i++)
			fake_add(ret, atomic_load(&fake_dns->addrs[i]), port);
	} else {
		fake_add(ret, ntohl(inet_addr(host)), port);
	}
	return error;
}

void freeaddrinfo(struct addrinfo *list)
{
	(void)list;
	n_fake_answers = 0;
}

#endif
