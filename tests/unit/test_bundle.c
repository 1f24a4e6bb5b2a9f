// SPDX-License-Identifier: BSD-2-Clause
/* Bundles over a socket pair: many descriptors, two versions of a struct, and what cannot be read. */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bundle.h"
#include "unit.h"

#define DESCRIPTORS 600 /* of several messages */

struct old {
	uint32_t a;
};

struct new
{
	uint32_t a, b;
};

static void pair(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
}

static void put(struct bundle *b, uint32_t kind, const void *at, size_t size, const int *fds,
		size_t n_fds, const char *more)
{
	struct record r = { .kind = kind,
			    .of = 7,
			    .at = at,
			    .size = size,
			    .fds = fds,
			    .n_fds = n_fds,
			    .n_more = strlen(more) };

	memcpy(bundle_put(b, &r), more, r.n_more);
}

TEST(test_round)
{
	struct old old = { 1 };
	struct new new = { 2, 3 };
	int fds[2], many[DESCRIPTORS];
	struct bundle out = { 0 }, in;
	struct stat is, was;
	struct record r;

	pair(fds);
	for (size_t i = 0; i < DESCRIPTORS; i++)
		many[i] = dup((int)(i % 2));
	put(&out, 1, &old, sizeof(old), many, 1, "bytes");
	put(&out, 2, &new, sizeof(new), many + 1, DESCRIPTORS - 1, "");
	assert_int_equal(bundle_send(&out, fds[0]), 0);
	close(fds[0]); /* the receiver may come later */
	assert_int_equal(bundle_receive(&in, fds[1]), 0);

	/* a newer version reads what an older one has sent */
	assert_true(bundle_get(&in, &r));
	record_read(&r, &new, sizeof(new));
	assert_int_equal(r.kind + r.of, 8);
	assert_int_equal(new.a, 1);
	assert_int_equal(new.b, 0);
	assert_int_equal(r.n_more, 5);
	assert_memory_equal(r.more, "bytes", 5);
	assert_int_equal(r.n_fds, 1);
	close(r.fds[0]);
	/* and an older one what a newer one has sent */
	assert_true(bundle_get(&in, &r));
	record_read(&r, &old, sizeof(old));
	assert_int_equal(old.a, 2);
	assert_int_equal(r.n_fds, DESCRIPTORS - 1);
	for (size_t i = 0; i < r.n_fds; i++) {
		assert_int_equal(fstat(r.fds[i], &is) + fstat(many[i + 1], &was), 0);
		assert_int_equal(is.st_ino, was.st_ino);
		close(r.fds[i]);
		close(many[i + 1]);
	}
	close(many[0]);
	assert_false(bundle_get(&in, &r));
	bundle_free(&in);
	bundle_free(&out);
	close(fds[1]);
}

TEST(test_other_end_is_gone)
{
	struct bundle b = { 0 };
	int fds[2];

	pair(fds);
	close(fds[0]);
	assert_int_equal(bundle_receive(&b, fds[1]), -EPIPE);
	bundle_free(&b);
	assert_int_equal(bundle_send(&b, fds[1]), -EPIPE);
	close(fds[1]);
}

TEST(test_cut_off)
{
	struct bundle out = { 0 }, in;
	struct record r;
	int fds[2];

	pair(fds);
	put(&out, 1, "", 1, NULL, 0, "bytes");
	out.len--;
	assert_int_equal(bundle_send(&out, fds[0]), 0);
	assert_int_equal(bundle_receive(&in, fds[1]), 0);
	assert_false(bundle_get(&in, &r));
	bundle_free(&in);
	bundle_free(&out);
	close(fds[0]);
	close(fds[1]);
}

UNIT_MAIN(NULL, NULL)
