/* SPDX-License-Identifier: BSD-2-Clause */
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "env.h"

/* A machine may be so many times slower than ours, and hang all the same. */
#define PATIENCE 4

static char work_dir[64];

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int env_slow(void)
{
	const char *text = getenv("CULVERT_TEST_SLOW");
	long factor = text ? strtol(text, NULL, 10) : 1;

	return factor < 1 || factor > 100 ? 1 : (int)factor;
}

bool env_has_ipv6(void)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

void env_need_ipv6(const char *prog)
{
	if (env_has_ipv6())
		return;
	printf("skip %s: this kernel has no IPv6\n", prog);
	exit(EXIT_SKIP);
}

uint64_t parse_bytes(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	if (end != text && (*end == 'K' || *end == 'k'))
		n <<= 10, end++;
	else if (end != text && (*end == 'M' || *end == 'm'))
		n <<= 20, end++;
	if (end == text || *end)
		errx(2, "not a number of bytes: %s", text);
	return n;
}

const char *env_dir(void)
{
	return work_dir;
}

static void remove_dir(void)
{
	DIR *dir = opendir(work_dir);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		unlinkat(dirfd(dir), e->d_name, 0); /* "." and ".." fail, which is fine */
	if (dir)
		closedir(dir);
	rmdir(work_dir);
}

/*
 * In a process of its own, which outlives us just long enough.  Its input is a pipe that only we
 * could write, and its descriptor 1 is FD.
 */
static void guard(int line, int fd, void (*fn)(void))
{
	char c;

	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	dup2(line, 0);
	dup2(fd, 1);
	syscall(SYS_close_range, 2, ~0U, 0);
	while (read(0, &c, 1) < 0 && errno == EINTR)
		;
	fn();
	_exit(0);
}

pid_t env_at_end(int fd, void (*fn)(void), int *ret_line)
{
	int line[2];
	pid_t pid;

	if (pipe2(line, O_CLOEXEC) < 0 || (pid = fork()) < 0)
		err(1, "fork");
	if (pid == 0)
		guard(line[0], fd, fn);
	close(line[0]);
	*ret_line = line[1];
	return pid;
}

static void make_dir(void)
{
	struct passwd *nobody = getpwnam("nobody");
	int line;

	snprintf(work_dir, sizeof(work_dir), "/tmp/culvert-flow.XXXXXX");
	if (!mkdtemp(work_dir))
		err(1, "mkdtemp");
	if (chmod(work_dir, 0755) || (nobody && chown(work_dir, nobody->pw_uid, nobody->pw_gid)))
		perror(work_dir);
	env_at_end(STDOUT_FILENO, remove_dir, &line); /* as long as we live */
}

bool env_put(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	bool is_written = f && fputs(text, f) >= 0;

	return f && !fclose(f) && is_written;
}

static int lo_up(void)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	r = ioctl(fd, SIOCGIFFLAGS, &ifr);
	ifr.ifr_flags |= IFF_UP;
	if (!r)
		r = ioctl(fd, SIOCSIFFLAGS, &ifr);
	r = r ? -errno : 0;
	close(fd);
	return r;
}

static void out_of_time(int sig)
{
	static const char text[] = "FAIL: the whole test took too long\n";

	(void)sig;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1); /* the daemon's guardian sees our end and kills the daemon */
}

void env_enter(const char *prog, unsigned int max_seconds)
{
	struct rlimit lim;
	int r;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (geteuid() != 0) {
		printf("skip %s: needs root to make a network namespace\n", prog);
		exit(EXIT_SKIP);
	}
	if (unshare(CLONE_NEWNET) < 0) {
		printf("skip %s: unshare(CLONE_NEWNET): %s\n", prog, strerror(errno));
		exit(EXIT_SKIP);
	}
	r = lo_up();
	if (r < 0) {
		printf("skip %s: cannot bring lo up: %s\n", prog, strerror(-r));
		exit(EXIT_SKIP);
	}
	/* Fixed ports of the tests stay below this range, thousands of sessions a minute within. */
	if (!env_put("/proc/sys/net/ipv4/ip_local_port_range", "20000 65000"))
		perror("note: ip_local_port_range");
	if (!getrlimit(RLIMIT_NOFILE, &lim)) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, out_of_time);
	alarm(max_seconds * PATIENCE * (unsigned int)env_slow());
	make_dir();
}
