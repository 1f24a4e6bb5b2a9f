// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/session_line.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What is being written.  SESSION_LINE_MAX is enough for any record: see the unit test. */
struct line {
	char *at, *end;
};

static void put_bytes(struct line *l, const char *text, size_t len)
{
	assert(len <= (size_t)(l->end - l->at));
	memcpy(l->at, text, len);
	l->at += len;
}

#define put(l, literal) put_bytes(l, literal, sizeof(literal) - 1)

static void put_text(struct line *l, const char *text)
{
	put_bytes(l, text, strlen(text));
}

static void put_number(struct line *l, uint64_t n)
{
	char digits[20], *at = digits + sizeof(digits);

	do
		*--at = (char)('0' + n % 10);
	while (n /= 10);
	put_bytes(l, at, (size_t)(digits + sizeof(digits) - at));
}

/* The bytes of the character of UTF-8 at TEXT; 0: that is none. */
static size_t utf8_len(const unsigned char *text, size_t len)
{
	size_t n = text[0] < 0x80 ? 1 : text[0] < 0xc2 ? 0 : text[0] < 0xe0 ? 2 :
		   text[0] < 0xf0 ? 3 : text[0] < 0xf5 ? 4 : 0;

	if (n > len)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	/* too long for what it is, a surrogate, or beyond the last character */
	if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
	    (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
		return 0;
	return n;
}

/* A text that somebody has chosen: what is no UTF-8 becomes "?". */
static void put_string(struct line *l, const char *text, size_t len)
{
	static const char hex[] = "0123456789abcdef";

	put(l, "\"");
	for (size_t i = 0, n; i < len; i += n ? n : 1) {
		unsigned char c = (unsigned char)text[i];

		n = utf8_len((const unsigned char *)text + i, len - i);
		if (!n) {
			put(l, "?");
		} else if (c < 0x20 || c == 0x7f) {
			char escape[] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };

			put_bytes(l, escape, sizeof(escape));
		} else {
			if (c == '"' || c == '\\')
				put(l, "\\");
			put_bytes(l, text + i, n);
		}
	}
	put(l, "\"");
}

/* RFC 3339, in UTC. */
static void put_time(struct line *l, struct session_clock *clock, uint64_t at_ms)
{
	int64_t ms = (int64_t)at_ms + clock->offset_ms, second = ms / 1000;
	char fraction[] = { '.', (char)('0' + ms % 1000 / 100), (char)('0' + ms % 100 / 10),
			    (char)('0' + ms % 10), 'Z' };
	time_t t = (time_t)second;
	struct tm tm;

	if (!clock->text[0] || clock->second != second) {
		gmtime_r(&t, &tm);
		snprintf(clock->text, sizeof(clock->text), "%04d-%02d-%02dT%02d:%02d:%02d",
			 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
			 tm.tm_sec);
		clock->second = second;
	}
	put(l, "\"");
	put_text(l, clock->text);
	put_bytes(l, fraction, sizeof(fraction));
	put(l, "\"");
}

static void put_client(struct line *l, const union client_addr *a)
{
	char text[ADDR_STRLEN];

	put(l, "\"");
	put_text(l, client_addr_text(a, text, sizeof(text)));
	put(l, "\"");
}

static void put_upstream(struct line *l, const struct session_record *r)
{
	struct sockaddr_storage ss;
	char text[ADDR_STRLEN];

	if (!r->upstream_len) {
		put(l, "null");
		return;
	}
	memcpy(&ss, r->tail, r->upstream_len);
	addr_format((struct sockaddr *)&ss, r->upstream_len, text, sizeof(text));
	put_string(l, text, strlen(text));
}

static uint64_t flow_bytes(const struct flow_record *f)
{
	return f->bytes[CARRIER_COPY] + f->bytes[CARRIER_SPLICE] + f->bytes[CARRIER_SOCKMAP];
}

static void put_flow(struct line *l, const struct flow_record *f, const char *direction)
{
	put(l, "{\"direction\":\"");
	put_text(l, direction);
	put(l, "\",\"carrier\":\"");
	put_text(l, carrier_name(f->carrier));
	put(l, "\",\"reason\":\"");
	put_text(l, reason_name(f->reason));
	put(l, "\",\"handovers\":");
	put_number(l, f->handovers);
	put(l, ",\"copy_bytes\":");
	put_number(l, f->bytes[CARRIER_COPY]);
	put(l, ",\"splice_bytes\":");
	put_number(l, f->bytes[CARRIER_SPLICE]);
	put(l, ",\"kernel_bytes\":");
	put_number(l, f->bytes[CARRIER_SOCKMAP]);
	put(l, "}");
}

/* A session that never connected has carried nothing, and nothing was chosen to carry it. */
static void put_flows(struct line *l, const struct session_record *r)
{
	put(l, ",\"bytes_to_upstream\":");
	put_number(l, flow_bytes(&r->flows[CLIENT]));
	put(l, ",\"bytes_to_client\":");
	put_number(l, flow_bytes(&r->flows[UPSTREAM]));
	put(l, ",\"flows\":[");
	if (r->connect_ms != SESSION_NEVER_CONNECTED) {
		put_flow(l, &r->flows[CLIENT], "client-to-upstream");
		put(l, ",");
		put_flow(l, &r->flows[UPSTREAM], "upstream-to-client");
	}
	put(l, "]");
}

size_t session_line(const struct session_record *r, struct session_clock *clock, char *buf)
{
	struct line l = { buf, buf + SESSION_LINE_MAX };

	put(&l, "{\"time\":");
	put_time(&l, clock, r->ended_ms);
	put(&l, ",\"start\":");
	put_time(&l, clock, r->born_ms);
	put(&l, ",\"id\":");
	if (r->id)
		put_number(&l, r->id);
	else
		put(&l, "null");
	put(&l, ",\"forward\":");
	put_string(&l, r->tail + r->upstream_len, r->forward_len);
	put(&l, ",\"client\":");
	put_client(&l, &r->client);
	if (r->via.sa.sa_family != AF_UNSPEC) {
		put(&l, ",\"via\":");
		put_client(&l, &r->via);
	}
	put(&l, ",\"upstream\":");
	put_upstream(&l, r);
	put(&l, ",\"end\":\"");
	put_text(&l, r->end == SESSION_FINISHED ? "finished" : cause_name(r->end));
	put(&l, "\",\"duration_ms\":");
	put_number(&l, r->ended_ms - r->born_ms);
	put(&l, ",\"connect_ms\":");
	if (r->connect_ms == SESSION_NEVER_CONNECTED)
		put(&l, "null");
	else
		put_number(&l, r->connect_ms);
	put_flows(&l, r);
	put(&l, "}\n");
	return (size_t)(l.at - buf);
}
