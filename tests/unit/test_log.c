/* SPDX-License-Identifier: BSD-2-Clause */
/* Lines of the log: their form, which are left out, and what becomes of those that nobody reads. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit.h"
#include "base/log.h"
#include "capture.h"

/* The digits of the time stamp become 'N'. */
static const char *without_digits(char *line)
{
	for (char *p = line; *p && *p != 'Z'; p++) {
		if (*p >= '0' && *p <= '9')
			*p = 'N';
	}
	return line;
}

static unsigned int count_lines(const char *text)
{
	unsigned int n = 0;

	for (; (text = strchr(text, '\n')); text++)
		n++;
	return n;
}

TEST(test_line)
{
	struct capture capture;
	char out[4096];

	capture_begin(&capture, STDERR_FILENO);
	errno = EBUSY;
	log_warning("port %d of %s: %m", 80, "a\nb\x1b");
	capture_end(&capture, out, sizeof(out));
	assert_string_equal(without_digits(out), "NNNN-NN-NNTNN:NN:NN.NNNZ warning: port 80 of "
						 "a?b?: Device or resource busy\n");
}

/* Fill the pipe whose end FD is, whole pages at a time, and leave it blocking. */
static void fill_pipe(int fd)
{
	static const char page[4096];

	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	while (write(fd, page, sizeof(page)) > 0)
		;
	assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
}

static size_t drain_pipe(int fd, char *buf, size_t size)
{
	ssize_t n;

	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	n = read(fd, buf, size - 1);
	buf[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

/* Nobody reads: nobody waits, and what was lost is counted in the next line. */
TEST(test_stalled_reader)
{
	static char buf[1 << 20];
	int saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3), fds[2], after;

	assert_true(saved >= 0);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	fill_pipe(fds[1]);
	alarm(20);
	dup2(fds[1], STDERR_FILENO);
	errno = ENOTTY;
	for (int i = 0; i < 3; i++)
		log_error("lost %d", i);
	after = errno;
	while (drain_pipe(fds[0], buf, sizeof(buf)))
		;
	log_error("%02000d", 1); /* the note is not cut */
	log_error("next");
	dup2(saved, STDERR_FILENO);
	alarm(0);
	drain_pipe(fds[0], buf, sizeof(buf));
	close(saved);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(after, ENOTTY);
	assert_null(strstr(buf, ": lost "));
	assert_non_null(strstr(buf, "000... (3 lines lost before)\n"));
	assert_non_null(strstr(buf, ": next\n"));
	assert_int_equal(count_lines(buf), 2);
	assert_int_equal(log_lines_lost(), 3);
}

TEST(test_escape)
{
	char buf[64];

	assert_string_equal(log_escape("ab\ncd\xff"
				       "e~",
				       buf, sizeof(buf)),
			    "ab?cd?e~");
	assert_string_equal(log_escape("", buf, 4), "");
	assert_string_equal(log_escape("abc", buf, 4), "abc");
	assert_string_equal(log_escape("abcd", buf, 4), "...");
	assert_string_equal(log_escape("\nbcdefg", buf, 6), "?b...");
}

TEST(test_limited)
{
	static struct log_rate rate;
	struct capture capture;
	char out[8192];

	capture_begin(&capture, STDERR_FILENO);
	for (unsigned int i = 0; i < LOG_BURST + 3; i++)
		log_write_limited(&rate, LOG_INFO, "n %u", i);
	log_write_limited(&rate, LOG_DEBUG, "below the level: not counted");
	capture_end(&capture, out, sizeof(out));
	assert_int_equal(count_lines(out), LOG_BURST);
	assert_null(strstr(out, "suppressed"));

	/* As if the window had passed. */
	rate.window_start_ms -= LOG_WINDOW_MS;
	capture_begin(&capture, STDERR_FILENO);
	log_write_limited(&rate, LOG_INFO, "first");
	log_write_limited(&rate, LOG_INFO, "second");
	capture_end(&capture, out, sizeof(out));
	assert_non_null(strstr(out, ": first (3 similar messages suppressed)\n"));
	assert_non_null(strstr(out, ": second\n"));
}

/*
 * What this program says when run anew with JOURNAL_STREAM=JOURNAL, NULL meaning the true name of
 * its stderr.  A process of its own, because where stderr leads is found out once per process.
 */
static void log_in_child(const char *journal, char *out, size_t size)
{
	char env[256], stream[64], program[] = "test_log", word[] = "child";
	char *argv[] = { program, word, NULL };
	char *envp[] = { env, NULL };
	struct capture capture;
	struct stat st;
	int status = -1;
	pid_t pid;
	int r;

	capture_begin(&capture, STDERR_FILENO);
	if (fstat(STDERR_FILENO, &st) < 0)
		abort();
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	snprintf(env, sizeof(env), "JOURNAL_STREAM=%s", journal ? journal : stream);
	r = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, envp);
	if (r == 0)
		waitpid(pid, &status, 0);
	capture_end(&capture, out, size);
	assert_int_equal(r, 0);
	assert_int_equal(status, 0);
}

TEST(test_journal)
{
	static const char *const others[] = { "1:2", "x" };
	char out[4096];

	log_in_child(NULL, out, sizeof(out));
	assert_string_equal(out, "<4>child speaking\n<3>culvert: child complaining\n");
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		log_in_child(others[i], out, sizeof(out));
		assert_string_equal(without_digits(out),
				    "NNNN-NN-NNTNN:NN:NN.NNNZ warning: child speaking\n"
				    "culvert: child complaining\n");
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "child") == 0) {
		log_warning("child speaking");
		log_complain(0, "child complaining");
		return 0;
	}
	return unit_run(NULL, NULL);
}
