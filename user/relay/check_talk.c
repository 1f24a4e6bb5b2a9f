// SPDX-License-Identifier: BSD-2-Clause
#include "relay/check_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

bool check_talks(const struct forward_conf *fc)
{
	return fc->check_http || fc->check_send || fc->check_expect;
}

/* Has TEXT, lines of a request's head, a line Host? */
static bool names_host(const char *text)
{
	return !strncasecmp(text, "Host:", 5) || strcasestr(text, "\nHost:");
}

size_t check_question(const struct forward_conf *fc, const char *host, char *to)
{
	char text[CHECK_BYTES] = "";
	int n = fc->check_send ? text_unescape(fc->check_send, text) : 0;
	bool own = !names_host(text);

	if (fc->check_http) /* the text is further lines of the head */
		return (size_t)snprintf(to, CHECK_BYTES,
					"GET %s HTTP/1.1\r\n%s%s%sUser-Agent: culvert\r\n"
					"Accept: */*\r\nConnection: close\r\n%.*s%s\r\n",
					fc->check_http, own ? "Host: " : "", own ? host : "",
					own ? "\r\n" : "", n, text,
					n && text[n - 1] != '\n' ? "\r\n" : "");
	memcpy(to, text, (size_t)n);
	return (size_t)n;
}

/* The status line of ANSWER. */
static enum check_verdict judge_status(const struct forward_conf *fc, const char *answer,
				       bool ended, char why[CHECK_WHY_LEN])
{
	unsigned int status, range[2];

	if (!strchr(answer, '\n') && !ended)
		return CHECK_MORE;
	if (sscanf(answer, "HTTP/1.%*1[01] %3u", &status) != 1) {
		snprintf(why, CHECK_WHY_LEN, *answer ? "no HTTP" : "no answer");
		return CHECK_BAD;
	}
	snprintf(why, CHECK_WHY_LEN, "HTTP %u", status);
	config_range(fc->check_status, range);
	return status >= range[0] && status <= range[1] ? CHECK_GOOD : CHECK_BAD;
}

enum check_verdict check_judge(const struct forward_conf *fc, const char *answer, size_t len,
			       bool ended, char why[CHECK_WHY_LEN])
{
	enum check_verdict status = CHECK_GOOD;
	char wanted[CHECK_BYTES];
	size_t n;

	ended = ended || len == CHECK_BYTES;
	if (fc->check_http)
		status = judge_status(fc, answer, ended, why);
	if (status != CHECK_GOOD || (fc->check_http && !fc->check_expect))
		return status;
	n = fc->check_expect ? (size_t)text_unescape(fc->check_expect, wanted) : 0;
	if (n ? !!memmem(answer, len, wanted, n) : len > 0) {
		snprintf(why, CHECK_WHY_LEN, "answers as expected");
		return CHECK_GOOD;
	}
	if (!ended)
		return CHECK_MORE;
	snprintf(why, CHECK_WHY_LEN, len ? "answers otherwise" : "no answer");
	return CHECK_BAD;
}

struct check_advice check_read_advice(const char *line)
{
	static const struct {
		const char *word;
		struct check_advice advice;
	} words[] = {
		{ "up", { ADVICE_STATE, false, ORDER_READY, 0 } },
		{ "down", { ADVICE_STATE, true, ORDER_READY, 0 } },
		{ "fail", { ADVICE_STATE, true, ORDER_READY, 0 } },
		{ "failed", { ADVICE_STATE, true, ORDER_READY, 0 } },
		{ "stopped", { ADVICE_STATE, true, ORDER_READY, 0 } },
		{ "ready", { ADVICE_ORDER, false, ORDER_READY, 0 } },
		{ "drain", { ADVICE_ORDER, false, ORDER_DRAIN, 0 } },
		{ "maint", { ADVICE_ORDER, false, ORDER_DOWN, 0 } },
	};
	struct check_advice a = { 0 };
	size_t len;

	for (line += strspn(line, " \t,"); *line && !strchr("\r\n#", *line);
	     line += strspn(line, " \t,")) {
		char *end;
		unsigned long percent = strtoul(line, &end, 10);

		len = strcspn(line, " \t,\r\n#");
		if (!strncasecmp(line, "maxconn:", 8))
			a.said |= ADVICE_IGNORED;
		if (end > line && *end == '%') {
			a.said |= ADVICE_WEIGHT;
			a.percent = (unsigned int)(percent < 10000 ? percent : 10000);
		}
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
			const struct check_advice *w = &words[i].advice;

			if (strlen(words[i].word) != len || strncasecmp(line, words[i].word, len))
				continue;
			a.said |= w->said;
			a.down = w->said == ADVICE_STATE ? w->down : a.down;
			a.order = w->said == ADVICE_ORDER ? w->order : a.order;
		}
		line += len;
	}
	return a;
}
