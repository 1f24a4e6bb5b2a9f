// SPDX-License-Identifier: BSD-2-Clause
/* What is counted, and how it is printed. */
#include "report.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

/* --- latencies --- */

/*
 * A value keeps its first 9 bits.  Below 512 it is its bucket's number; above, a value whose
 * highest bit is 8 + SHIFT goes to SHIFT * 256 + (value >> SHIFT), where the second term is 256 to
 * 511: so the numbers go on without a gap from one power of two to the next.
 */
static size_t bucket_of(uint64_t ns)
{
	unsigned int shift;

	if (ns > HISTOGRAM_LIMIT_NS)
		ns = HISTOGRAM_LIMIT_NS;
	if (ns < 2 * HISTOGRAM_SUB)
		return ns;
	shift = 63 - (unsigned int)__builtin_clzll(ns) - HISTOGRAM_SUB_BITS;
	return shift * HISTOGRAM_SUB + (ns >> shift);
}

/* The largest value, in nanoseconds, that counts in BUCKET. */
static uint64_t histogram_upper_ns(size_t bucket)
{
	unsigned int shift;

	if (bucket < 2 * HISTOGRAM_SUB)
		return bucket;
	shift = (unsigned int)(bucket / HISTOGRAM_SUB) - 1;
	return ((uint64_t)(bucket - shift * HISTOGRAM_SUB + 1) << shift) - 1;
}

void histogram_record(struct histogram *h, uint64_t ns)
{
	h->counts[bucket_of(ns)]++;
	h->n++;
	h->sum += ns;
	if (ns > h->max)
		h->max = ns;
}

void histogram_add(struct histogram *to, const struct histogram *from)
{
	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		to->counts[i] += from->counts[i];
	to->n += from->n;
	to->sum += from->sum;
	if (from->max > to->max)
		to->max = from->max;
}

uint64_t histogram_percentile(const struct histogram *h, unsigned int per_10000)
{
	/* in two steps, so that no count overflows */
	uint64_t rank = h->n / 10000 * per_10000 + (h->n % 10000 * per_10000 + 9999) / 10000;
	uint64_t seen = 0;

	for (size_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
		seen += h->counts[i];
		if (h->counts[i] && seen >= rank) {
			uint64_t upper = histogram_upper_ns(i);

			return upper < h->max ? upper : h->max;
		}
	}
	return h->max; /* in the last bucket, or nothing at all */
}

/* The arithmetic mean in nanoseconds; 0 if nothing is recorded. */
static double histogram_mean(const struct histogram *h)
{
	return h->n ? (double)h->sum / (double)h->n : 0;
}

/* --- all that is counted --- */

void tally_open(struct tally *t)
{
	memset(t, 0, sizeof(*t));
	t->least = UINT64_MAX;
}

static void add_array(uint64_t *to, const uint64_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

static void at_least(uint64_t *to, uint64_t value)
{
	if (value > *to)
		*to = value;
}

void tally_add(struct tally *to, const struct tally *from)
{
	to->opened += from->opened;
	to->failed += from->failed;
	to->requests += from->requests;
	to->bytes_up += from->bytes_up;
	to->bytes_down += from->bytes_down;
	to->lossless += from->lossless;
	to->wrong += from->wrong;
	add_array(to->errors, from->errors, N_CAUSES);
	add_array(to->connect_errno, from->connect_errno, ERRNO_MAX);
	if (from->least < to->least)
		to->least = from->least;
	at_least(&to->most, from->most);
	at_least(&to->began_ns, from->began_ns);
	at_least(&to->measured_ns, from->measured_ns);
	histogram_add(&to->latency, &from->latency);
}

void tally_share(struct tally *t, uint64_t bytes)
{
	if (bytes < t->least)
		t->least = bytes;
	at_least(&t->most, bytes);
}

/* --- its print --- */

static void add_count(struct json_object *o, const char *key, uint64_t value)
{
	json_object_object_add(o, key, json_object_new_uint64(value));
}

/* With DIGITS after the point: the 17 that json-c would print are noise. */
static struct json_object *number(double value, int digits)
{
	char text[400];

	snprintf(text, sizeof(text), "%.*f", digits, value);
	return json_object_new_double_s(value, text);
}

static void add_number(struct json_object *o, const char *key, double value, int digits)
{
	json_object_object_add(o, key, number(value, digits));
}

static void print(struct json_object *o)
{
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_SPACED));
	fflush(stdout);
	json_object_put(o);
}

void report_ready(const struct tally *t)
{
	struct json_object *o = json_object_new_object();

	add_count(o, "ready", t->opened);
	add_count(o, "failed", t->failed);
	print(o);
}

static struct json_object *latency(const struct histogram *h)
{
	static const struct {
		const char *key;
		unsigned int per_10000;
	} percentiles[] = { { "p50", 5000 }, { "p90", 9000 }, { "p99", 9900 }, { "p99_9", 9990 } };
	struct json_object *o;

	if (!h->n)
		return NULL;
	o = json_object_new_object();
	add_number(o, "mean", histogram_mean(h) / 1000, 3);
	for (size_t i = 0; i < sizeof(percentiles) / sizeof(percentiles[0]); i++)
		add_number(o, percentiles[i].key,
			   (double)histogram_percentile(h, percentiles[i].per_10000) / 1000, 3);
	add_number(o, "max", (double)h->max / 1000, 3);
	return o;
}

static struct json_object *buckets(const struct histogram *h)
{
	struct json_object *list;

	if (!h->n)
		return NULL;
	list = json_object_new_array();
	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		struct json_object *pair;

		if (!h->counts[i])
			continue;
		pair = json_object_new_array();
		json_object_array_add(pair, number((double)histogram_upper_ns(i) / 1000, 3));
		json_object_array_add(pair, json_object_new_uint64(h->counts[i]));
		json_object_array_add(list, pair);
	}
	return list;
}

static struct json_object *errors(const struct tally *t)
{
	static const char *const keys[N_CAUSES] = {
		[CAUSE_CONNECT] = "connect",
		[CAUSE_RESET] = "reset",
		[CAUSE_TIMEOUT] = "timeout",
		[CAUSE_SHORT] = "short",
	};
	struct json_object *o = json_object_new_object();

	for (size_t i = 0; i < N_CAUSES; i++)
		add_count(o, keys[i], t->errors[i]);
	return o;
}

/* "connect" of errors(), by the name of errno. */
static struct json_object *connect_errors(const struct tally *t)
{
	struct json_object *o = json_object_new_object();

	for (int i = 0; i < ERRNO_MAX; i++)
		if (t->connect_errno[i])
			add_count(o, strerrorname_np(i) ?: "unknown", t->connect_errno[i]);
	return o;
}

static struct json_object *fairness(const struct tally *t, double seconds)
{
	struct json_object *o;

	if (t->least > t->most || seconds <= 0)
		return NULL;
	o = json_object_new_object();
	add_number(o, "min_gbps", (double)t->least * 8 / seconds / 1e9, 9);
	add_number(o, "max_gbps", (double)t->most * 8 / seconds / 1e9, 9);
	return o;
}

/* Figures that are per second of measured time.  idle has none: it only holds. */
static void add_rates(struct json_object *o, const struct options *opt, const struct tally *t,
		      double seconds)
{
	double bytes = (double)(t->bytes_up + t->bytes_down);
	bool rates = seconds > 0 && opt->workload != WORKLOAD_IDLE;

	json_object_object_add(o, "rate",
			       rates && !workload_is_transfer(opt->workload) ?
				       number((double)t->requests / seconds, 3) :
				       NULL);
	json_object_object_add(o, "gbps", rates ? number(bytes * 8 / seconds / 1e9, 9) : NULL);
	if (workload_is_transfer(opt->workload))
		json_object_object_add(o, "fairness", fairness(t, seconds));
}

void report_client(const struct options *opt, const struct tally *t)
{
	struct json_object *o = json_object_new_object();
	double seconds = (double)t->measured_ns / 1e9;

	json_object_object_add(o, "workload", json_object_new_string(workload_name(opt->workload)));
	add_count(o, "connections", opt->connections);
	if (opt->workload != WORKLOAD_CRR) {
		add_count(o, "opened", t->opened);
		add_count(o, "failed", t->failed);
	}
	add_count(o, "size", opt->size);
	if (opt->workload == WORKLOAD_SLOW)
		add_count(o, "read_rate", opt->rate);
	add_number(o, "began", (double)t->began_ns / 1e9, 6);
	add_number(o, "seconds", seconds, 6);
	add_count(o, "requests", t->requests);
	add_count(o, "bytes", t->bytes_up + t->bytes_down);
	add_count(o, "bytes_up", t->bytes_up);
	add_count(o, "bytes_down", t->bytes_down);
	add_rates(o, opt, t, seconds);
	if (opt->udp && workload_is_transfer(opt->workload))
		add_count(o, "lossless", t->lossless);
	json_object_object_add(o, "latency_us", latency(&t->latency));
	json_object_object_add(o, "errors", errors(t));
	json_object_object_add(o, "connect_errors", connect_errors(t));
	add_count(o, "wrong", t->wrong);
	json_object_object_add(o, "histogram", buckets(&t->latency));
	print(o);
}

void sink_tally_add(struct sink_tally *to, const struct sink_tally *from)
{
	to->connections += from->connections;
	to->received += from->received;
	to->sent += from->sent;
	to->wrong += from->wrong;
	to->cut += from->cut;
	to->bad_headers += from->bad_headers;
	to->pauses += from->pauses;
}

void report_sink(const struct sink_tally *t)
{
	struct json_object *o = json_object_new_object();

	add_count(o, "connections", t->connections);
	add_count(o, "bytes", t->received + t->sent);
	add_count(o, "bytes_received", t->received);
	add_count(o, "bytes_sent", t->sent);
	add_count(o, "wrong", t->wrong);
	add_count(o, "cut", t->cut);
	add_count(o, "bad_headers", t->bad_headers);
	add_count(o, "accept_pauses", t->pauses);
	print(o);
}
