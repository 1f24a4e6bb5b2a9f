// SPDX-License-Identifier: BSD-2-Clause
#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Noreturn void fuzz_fail(const char *file, int line, const char *cond, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "\n%s:%d: does not hold: %s: ", file, line, cond);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	abort();
}

/* --- the input --- */

uint8_t input_byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

uint64_t input_number(struct input *in, unsigned int bytes)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < bytes; i++)
		n |= (uint64_t)input_byte(in) << (8 * i);
	return n;
}

uint64_t input_size(struct input *in)
{
	unsigned int bits = input_byte(in) % 65;
	uint64_t n = input_number(in, (bits + 7) / 8);

	return bits == 64 ? n : n & ((UINT64_C(1) << bits) - 1);
}

char *input_text(struct input *in)
{
	size_t n = strnlen((const char *)in->at, in->left);
	char *text = strndup((const char *)in->at, n);

	if (!text)
		abort();
	in->at += n;
	in->left -= n;
	input_byte(in);
	return text;
}

size_t input_bytes(struct input *in, size_t n, const uint8_t **ret)
{
	if (n > in->left)
		n = in->left;
	*ret = in->at;
	in->at += n;
	in->left -= n;
	return n;
}

uint8_t *exact_copy(const uint8_t *bytes, size_t n)
{
	uint8_t *room = malloc(n ?: 1);

	if (!room)
		abort();
	if (n)
		memcpy(room, bytes, n);
	return room;
}

/* --- the output --- */

bool is_printable(const char *text, bool lines)
{
	for (; *text; text++)
		if ((*text < 0x20 || *text >= 0x7f) && !(lines && *text == '\n'))
			return false;
	return true;
}

static char heard[1 << 20];
static size_t heard_n;

const char *said(void)
{
	return heard;
}

void said_clear(void)
{
	heard_n = 0;
	heard[0] = '\0';
}

static void hear(const char *text, size_t n)
{
	must(n < sizeof(heard) - heard_n, "more than %zu bytes of messages", sizeof(heard));
	must(!memchr(text, '\0', n), "a NUL on stderr");
	memcpy(heard + heard_n, text, n);
	heard_n += n;
	heard[heard_n] = '\0';
}

/* These two take the place of the C library's, also for its other callers. */
ssize_t write(int fd, const void *data, size_t n)
{
	if (fd != STDERR_FILENO)
		return syscall(SYS_write, fd, data, n);
	hear(data, n);
	return (ssize_t)n;
}

int dprintf(int fd, const char *fmt, ...)
{
	char line[8192];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	must(n >= 0 && (size_t)n < sizeof(line), "a message of %d bytes", n);
	return (int)write(fd, line, (size_t)n);
}

static FILE *real_stdout;
static char *printed;
static size_t printed_n;

void stdout_begin(void)
{
	free(printed);
	printed = NULL;
	real_stdout = stdout;
	stdout = open_memstream(&printed, &printed_n);
	if (!stdout)
		abort();
}

const char *stdout_end(size_t *ret_len)
{
	fclose(stdout);
	stdout = real_stdout;
	if (ret_len)
		*ret_len = printed_n;
	return printed;
}
