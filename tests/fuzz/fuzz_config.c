// SPDX-License-Identifier: BSD-2-Clause
/*
 * The command line of `culvert run` (user/config/config.c): words that end in NUL.  What is
 * accepted is within the documented bounds.  What is not gives one line on stderr.
 */
#include <errno.h>
#include <string.h>

#include "config_model.h"
#include "fuzz.h"

#define WORDS_MAX 64

static void check_message(void)
{
	const char *text = said(), *end = strchr(text, '\n');

	must(!strncmp(text, "culvert: ", 9) && end && !end[1], "\"%s\"", text);
	must(strlen(text) > 12 && is_printable(text, true), "\"%s\"", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	const char *help;
	struct config c;
	int argc, r;
	char **argv = input_words(&in, "run", WORDS_MAX, &argc);

	said_clear();
	stdout_begin();
	r = config_parse(argc, argv, &c);
	help = stdout_end(NULL);
	must(!help[0] == (r != 1), "returned %d and printed \"%s\"", r, help);
	must(r <= 1, "returned %d", r);
	if (r < 0) {
		/* a file that is named may be anything */
		must(c.file || r == -EINVAL || r == -ENOENT || r == -EAGAIN || r == -ENOMEM,
		     "returned %d", r);
		check_message();
	} else {
		must(c.file || !said()[0], "%s", said());
	}
	if (r == 0) {
		must(c.n_forwards >= 1, "no forward");
		model_must_be_sane(&c);
	}
	config_close(&c);
	config_close(&c);
	words_free(argv);
	return 0;
}
