// SPDX-License-Identifier: BSD-2-Clause
#include "relay/proxy_use.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define SEPARATORS ", \t"

static const struct word {
	const char *text;
	unsigned int use;
} words[] = {
	{ "receive", PROXY_RECEIVE },
	{ "send-v1", PROXY_SEND_V1 },
	{ "send-v2", PROXY_SEND_V2 },
	{ "off", 0 },
};

/* The first LEN bytes of TEXT, or NULL. */
static const struct word *find_word(const char *text, size_t len)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strlen(words[i].text) == len && !strncmp(words[i].text, text, len))
			return &words[i];
	return NULL;
}

int proxy_use_parse(const char *text, unsigned int *ret)
{
	unsigned int use = 0, n = 0;
	bool off = false;

	for (text += strspn(text, SEPARATORS); *text; text += strspn(text, SEPARATORS)) {
		size_t len = strcspn(text, SEPARATORS);
		const struct word *w = find_word(text, len);

		/* a word twice is a slip, and of two versions nobody could tell which counts */
		if (!w || use & w->use || (use & PROXY_SEND && w->use & PROXY_SEND))
			return -EINVAL;
		use |= w->use;
		off |= !w->use;
		n++;
		text += len;
	}
	if (!n || (off && n > 1))
		return -EINVAL;
	*ret = use;
	return 0;
}

const char *proxy_use_text(unsigned int use)
{
	static const char *const texts[] = {
		[0] = "off",
		[PROXY_RECEIVE] = "receive",
		[PROXY_SEND_V1] = "send-v1",
		[PROXY_SEND_V2] = "send-v2",
		[PROXY_RECEIVE | PROXY_SEND_V1] = "receive, send-v1",
		[PROXY_RECEIVE | PROXY_SEND_V2] = "receive, send-v2",
	};

	return use < sizeof(texts) / sizeof(texts[0]) && texts[use] ? texts[use] : "?";
}
