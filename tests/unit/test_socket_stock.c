// SPDX-License-Identifier: BSD-2-Clause
/* Sockets in stock, with a privileged process that answers as a test wants it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/config.h"
#include "relay/socket_stock.h"

#define PATIENCE_MS 10000

static _Atomic int errors[2]; /* of each family: 0 or -errno */
static _Atomic unsigned int refused[2];
static struct stock_keeper *keeper;
static struct loop loop; /* that nobody runs */
static struct socket_stock *stock;
static struct config config;

static int make(void *arg, uint32_t generation, size_t forward, int family, unsigned int n, int *fds,
		char *err, size_t errlen)
{
	int error = errors[family == AF_INET6];

	(void)arg;
	(void)generation;
	(void)forward;
	for (unsigned int i = 0; !error && i < n; i++) {
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (fds[i] < 0)
			error = -errno;
	}
	if (!error)
		return 0;
	snprintf(err, errlen, "%s", strerror(-error));
	refused[family == AF_INET6]++;
	return error;
}

static int setup(void **state)
{
	static const char text[] = "[forward a]\nlisten = 127.0.0.1:80\n"
				   "upstream = db.invalid:9\nmark = 7\n";
	char *argv[] = { (char *)"run", (char *)"--config", (char *)"a.conf" };
	struct config_source from = { text, sizeof(text) - 1 };
	char err[256];

	(void)state;
	for (unsigned int i = 0; i < 2; i++) {
		errors[i] = 0;
		refused[i] = 0;
	}
	return loop_open(&loop, NULL, NULL) || config_parse_from(3, argv, &from, &config) || stock_keeper_open(make, NULL, &loop, &keeper) ||
	       socket_stock_open(keeper, &config, 0, &stock, err, sizeof(err));
}

static int teardown(void **state)
{
	(void)state;
	socket_stock_close(stock);
	stock_keeper_close(keeper);
	config_close(&config);
	loop_close(&loop);
	return 0;
}

/* Take what there is until it has been refused twice: so what became of the first is known. */
static void use_up(void)
{
	unsigned int before = refused[0];
	int fd;

	for (int i = 0; refused[0] < before + 2; i++) {
		assert_true(i < PATIENCE_MS);
		while ((fd = socket_stock_take(stock, AF_INET)) >= 0)
			close(fd);
		stock_keeper_after_batch(keeper);
	}
}

/* What is taken is WANT, at last. */
static void wait_taken(int family, int want)
{
	int got = 0;

	for (int i = 0; i < PATIENCE_MS; i++) {
		got = socket_stock_take(stock, family);
		if (got >= 0)
			close(got);
		if (got == want || (got >= 0 && want == 0))
			return;
		stock_keeper_after_batch(keeper);
	}
	fail_msg("%d, and not %d", got, want);
}

/* An error that passes is no reason to end a session, unless such errors never are. */
static void test_passing_errors(void **state)
{
	static const struct {
		int error, taken;
	} cases[] = {
		{ -EBUSY, -EAGAIN }, /* somebody else asks it */
		{ -EIO, -EAGAIN },
		{ -EMFILE, -EMFILE },
		{ -ENFILE, -ENFILE },
		{ -ENOMEM, -ENOMEM },
		{ -ENOBUFS, -ENOBUFS },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		errors[0] = cases[i].error;
		use_up();
		assert_int_equal(socket_stock_take(stock, AF_INET), cases[i].taken);
		errors[0] = 0;
		wait_taken(AF_INET, 0);
	}
}

static void test_final_errors(void **state)
{
	static const int finals[] = { -EAFNOSUPPORT, -EPERM, -EPIPE };

	(void)state;
	for (size_t i = 0; i < sizeof(finals) / sizeof(finals[0]); i++) {
		teardown(NULL);
		assert_int_equal(setup(NULL), 0);
		errors[0] = finals[i];
		wait_taken(AF_INET, finals[i]);
	}
}

/* By another number it may be a forward that it knows. */
static void test_renumber(void **state)
{
	(void)state;
	errors[0] = -EPERM;
	wait_taken(AF_INET, -EPERM);
	errors[0] = 0;
	socket_stock_renumber(stock, 1, 0);
	wait_taken(AF_INET, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_passing_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_final_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_renumber, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
