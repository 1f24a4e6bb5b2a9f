/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the fuzzers share.  A target is a file fuzz_NAME.c with a function LLVMFuzzerTestOneInput();
 * the build and scripts/fuzz find it by that name, and its corpus is corpus/NAME.  The other files
 * of this folder are linked into each of them.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unless COND holds: say so with the message, and abort, which the fuzzer counts as a crash. */
#define must(cond, ...)                                                                            \
	do {                                                                                       \
		if (!(cond))                                                                       \
			fuzz_fail(__FILE__, __LINE__, #cond, __VA_ARGS__);                         \
	} while (0)

_Noreturn void fuzz_fail(const char *file, int line, const char *cond, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* What is left of an input.  Past its end there are zeros. */
struct input {
	const uint8_t *at;
	size_t left;
};

uint8_t input_byte(struct input *in);
/* A number of up to 8 bytes, which come first, little-endian. */
uint64_t input_number(struct input *in, unsigned int bytes);
/* Of any magnitude: a byte for the number of bits, then the bits. */
uint64_t input_size(struct input *in);
/* The bytes up to the next NUL, or to the end.  The caller frees it. */
char *input_text(struct input *in);
/* A copy in memory that ends where its N bytes do.  The caller frees it. */
uint8_t *exact_copy(const uint8_t *bytes, size_t n);
/* At most N bytes; returns how many there are at *RET. */
size_t input_bytes(struct input *in, size_t n, const uint8_t **ret);

/* Nothing but printable ASCII, and newlines if LINES. */
bool is_printable(const char *text, bool lines);

/*
 * What the code under test writes to stderr with write(2) or dprintf(3) is kept, not shown (the
 * fuzzer's own messages take another way).  As a string, since the last call of said_clear().
 */
const char *said(void);
void said_clear(void);

/* What is written to stdout meanwhile, as a string that is valid until the next stdout_begin(). */
void stdout_begin(void);
const char *stdout_end(size_t *ret_len);
