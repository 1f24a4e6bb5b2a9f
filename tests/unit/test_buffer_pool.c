/* SPDX-License-Identifier: BSD-2-Clause */
/* Buffers and pipes that flows borrow: which are kept, and how many there may be. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"
#include "datapath/buffer_pool.h"
#include "seeded.h"

#define MANY 100 /* more than a pool keeps of anything */

static struct pool pool;
static unsigned int descriptors_before;

static int setup(void **state)
{
	(void)state;
	descriptors_before = count_descriptors();
	pool = (struct pool){ 0 };
	return 0;
}

/* Whatever a test did: all is given back, and nothing stays open. */
static int teardown(void **state)
{
	(void)state;
	if (pool.buffers_lent || pool.pipes_lent)
		return -1;
	pool_close(&pool);
	return count_descriptors() == descriptors_before ? 0 : -1;
}

static void expect_pipes(unsigned int lent, unsigned int idle)
{
	assert_int_equal(pool.pipes_lent, lent);
	assert_int_equal(pool.pipes_idle, idle);
	assert_int_equal(count_descriptors(), descriptors_before + 2 * (lent + idle));
}

#define ON_POOL(f) TEST_WITH(f, setup, teardown)

/* --- buffers --- */

/* An idle one of another size is replaced; what nobody asks for any more goes. */
ON_POOL(test_buffer_sizes)
{
	struct buffer *big = pool_buffer_get(&pool, 100000), *b[MANY];

	memset(big->data, 2, 100000);
	assert_int_equal(big->size, 100000);
	pool_buffer_put(&pool, big);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MANY; i++) {
			b[i] = pool_buffer_get(&pool, 50);
			assert_int_equal(b[i]->size, 50);
		}
		for (int i = 0; i < MANY; i++)
			pool_buffer_put(&pool, b[i]);
	}
	assert_int_equal(pool.spare->size, 50);
}

/* --- pipes --- */

/* Bytes of one session must never reach another. */
ON_POOL(test_pipe_with_bytes)
{
	struct pipe *a = pool_pipe_get(&pool), *b;
	char byte;

	assert_non_null(a);
	assert_int_equal(write(a->write_fd, "secret", 6), 6);
	pool_pipe_put(&pool, a, false);
	expect_pipes(0, 0);
	b = pool_pipe_get(&pool);
	assert_non_null(b);
	assert_int_equal(read(b->read_fd, &byte, 1), -1);
	assert_int_equal(errno, EAGAIN);
	pool_pipe_put(&pool, b, true);
	expect_pipes(0, 1);
}

/* No descriptor: the answer is NULL, and the pipe that could not be made does not count. */
ON_POOL(test_pipe_no_descriptors)
{
	struct rlimit old, none;
	struct pipe *pipe;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = (struct rlimit){ 0, old.rlim_max };
	pool_pipes_max = 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	pipe = pool_pipe_get(&pool);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_null(pipe);
	expect_pipes(0, 0);
	pipe = pool_pipe_get(&pool);
	assert_non_null(pipe);
	pool_pipes_max = UINT_MAX;
	pool_pipe_put(&pool, pipe, true);
}

/* Pipes of all pools together: the limit counts idle ones too, and a closed one makes room. */
ON_POOL(test_pipe_budget)
{
	struct pool other = { 0 };
	struct pipe *a, *b, *c;

	pool_pipes_max = 2;
	a = pool_pipe_get(&pool);
	b = pool_pipe_get(&other);
	c = pool_pipe_get(&pool);
	assert_null(c);
	assert_int_equal(pool.pipes_lent, 1);
	assert_int_equal(count_descriptors(), descriptors_before + 4);
	pool_pipe_put(&other, b, true);
	assert_null(pool_pipe_get(&pool));
	assert_ptr_equal(pool_pipe_get(&other), b);
	pool_pipe_put(&other, b, false);
	c = pool_pipe_get(&pool);
	assert_non_null(c);
	assert_null(pool_pipe_get(&other));
	pool_pipe_put(&pool, a, true);
	pool_pipe_put(&pool, c, true);
	pool_trim(&pool);
	expect_pipes(0, 0);

	pool_pipes_max = 0;
	assert_null(pool_pipe_get(&pool));
	pool_pipes_max = UINT_MAX;
	a = pool_pipe_get(&pool);
	assert_non_null(a);
	pool_pipe_put(&pool, a, true);
	pool_close(&other);
}

/* --- /proc/sys/fs/pipe-user-pages-soft --- */

#define FREE_UID 64231 /* with no pipes of anybody else, nor those of other tests */
#define LENT_MAX 1000
#define LENT_DESCRIPTORS (2 * LENT_MAX + 100)

/* The limit that the figures of buffer_pool.c are about. */
static bool usual_limit(void)
{
	FILE *f = fopen("/proc/sys/fs/pipe-user-pages-soft", "re");
	unsigned long pages = 0;

	if (f && fscanf(f, "%lu", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	return pages == 16384 && sysconf(_SC_PAGESIZE) == 4096;
}

/* As a user who has the limit, with descriptors for all. */
static bool become_limited(void)
{
	struct rlimit many;

	if (getrlimit(RLIMIT_NOFILE, &many) || many.rlim_max < LENT_DESCRIPTORS)
		return false;
	if (many.rlim_cur < LENT_DESCRIPTORS)
		many.rlim_cur = LENT_DESCRIPTORS;
	return !setrlimit(RLIMIT_NOFILE, &many) &&
	       (geteuid() || !setresuid(FREE_UID, FREE_UID, FREE_UID));
}

/* In a process of its own: the first thing that is not as it should be, or NULL. */
static const char *lend_all(void)
{
	static struct pipe *pipes[LENT_MAX];
	unsigned int n = 0;
	uint64_t bytes = 0;

	while (n < LENT_MAX && (pipes[n] = pool_pipe_get(&pool)))
		bytes += pipes[n++]->size;
	if (n == LENT_MAX)
		return "no end";
	if (n < 300 || bytes > 64 << 20) /* others of this user may have some */
		return "fewer than fit";
	for (unsigned int i = 0; i < n; i++)
		if (pipes[i]->size < 64 << 10)
			return "a small one";
	if (pipes[0]->size != 512 << 10)
		return "the first one is not large";

	/* few stay, and there is room again: for large ones, whichever are kept */
	while (n)
		pool_pipe_put(&pool, pipes[--n], true);
	if (pool.pipes_idle > MANY / 2)
		return "too many are idle";
	for (; n < MANY; n++) {
		pipes[n] = pool_pipe_get(&pool);
		if (!pipes[n])
			return "no recovery";
		if (n < 10 && pipes[n]->size != 512 << 10)
			return "still a smaller one";
	}
	return NULL;
}

/* More than 500 pipes, none of them small. */
ON_POOL(test_pipe_pages)
{
	const char *fault;
	int status;
	pid_t pid;

	if (!usual_limit())
		skip();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (!become_limited())
			_exit(2);
		fault = lend_all();
		if (fault)
			fprintf(stderr, "pipes: %s\n", fault);
		_exit(fault ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

UNIT_MAIN(NULL, NULL)
