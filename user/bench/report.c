// SPDX-License-Identifier: BSD-2-Clause
/* What is counted, and how it is printed. */
#include "report.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/minmax.h"

/* N counters that are one after the other. */
static void add_counters(uint64_t *to, const uint64_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

/* --- latencies --- */

/*
 * A bucket knows the first 9 bits of its values.  A value below 512 has the bucket of its own
 * number.  A larger value, whose highest bit is 8 + SHIFT, has bucket SHIFT * 256 + (value >>
 * SHIFT).  The second term is 256 to 511, so bucket numbers have no gap between powers of two.
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
	h->max = larger(h->max, ns);
}

void histogram_add(struct histogram *to, const struct histogram *from)
{
	add_counters(&to->n, &from->n, 2);
	add_counters(to->counts, from->counts, HISTOGRAM_BUCKETS);
	to->max = larger(to->max, from->max);
}

uint64_t histogram_percentile(const struct histogram *h, unsigned int per_10000)
{
	/* in two steps, so that no count overflows */
	uint64_t rank = h->n / 10000 * per_10000 + (h->n % 10000 * per_10000 + 9999) / 10000;
	uint64_t seen = 0;

	for (size_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
		seen += h->counts[i];
		if (h->counts[i] && seen >= rank)
			return smaller(histogram_upper_ns(i), h->max);
	}
	return h->max; /* in the last bucket, or nothing at all */
}

/* --- all that is counted --- */

void tally_open(struct tally *t)
{
	memset(t, 0, sizeof(*t));
	t->least = UINT64_MAX;
}

void tally_add(struct tally *to, const struct tally *from)
{
	add_counters(&to->opened, &from->opened, offsetof(struct tally, least) / sizeof(uint64_t));
	to->least = smaller(to->least, from->least);
	to->most = larger(to->most, from->most);
	to->began_ns = larger(to->began_ns, from->began_ns);
	to->measured_ns = larger(to->measured_ns, from->measured_ns);
	histogram_add(&to->latency, &from->latency);
}

void tally_share(struct tally *t, uint64_t bytes)
{
	t->least = smaller(t->least, bytes);
	t->most = larger(t->most, bytes);
}

void sink_tally_add(struct sink_tally *to, const struct sink_tally *from)
{
	add_counters(&to->connections, &from->connections, sizeof(*to) / sizeof(uint64_t));
}

/* --- its print --- */

static void add_number(struct json_object *o, const char *key, double value)
{
	json_object_object_add(o, key, json_object_new_double(value));
}

static void print(struct json_object *o)
{
	/* to a nanosecond; the 17 digits of json-c would be noise */
	json_c_set_serialization_double_format("%.9f", JSON_C_OPTION_GLOBAL);
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOZERO));
	fflush(stdout);
	json_object_put(o);
}

void report_ready(const struct tally *t)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "ready", t->opened);
	json_add_int(o, "failed", t->failed);
	print(o);
}

static double us(uint64_t ns)
{
	return (double)ns / 1000;
}

static void add_latency(struct json_object *report, const struct histogram *h)
{
	struct json_object *o = NULL, *list = NULL;

	if (h->n) {
		o = json_object_new_object();
		add_number(o, "mean", us(h->sum) / (double)h->n);
		add_number(o, "p50", us(histogram_percentile(h, 5000)));
		add_number(o, "p90", us(histogram_percentile(h, 9000)));
		add_number(o, "p99", us(histogram_percentile(h, 9900)));
		add_number(o, "p99_9", us(histogram_percentile(h, 9990)));
		add_number(o, "max", us(h->max));
		list = json_object_new_array();
	}
	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		struct json_object *pair;

		if (!h->counts[i])
			continue;
		pair = json_object_new_array();
		json_append(pair, json_object_new_double(us(histogram_upper_ns(i))));
		json_append(pair, json_object_new_uint64(h->counts[i]));
		json_append(list, pair);
	}
	json_object_object_add(report, "latency_us", o);
	json_object_object_add(report, "histogram", list);
}

static void add_errors(struct json_object *report, const struct tally *t)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "connect", t->errors[CAUSE_CONNECT]);
	json_add_int(o, "reset", t->errors[CAUSE_RESET]);
	json_add_int(o, "timeout", t->errors[CAUSE_TIMEOUT]);
	json_add_int(o, "short", t->errors[CAUSE_SHORT]);
	json_add(report, "errors", o);
}

static double gbps(uint64_t bytes, double seconds)
{
	return (double)bytes * 8 / seconds / 1e9;
}

/* Figures per second of measured time.  idle has none: it only holds connections. */
static void add_rates(struct json_object *report, const struct options *opt, const struct tally *t,
		      double seconds)
{
	bool measured = seconds > 0 && opt->workload != WORKLOAD_IDLE;
	struct json_object *o = NULL;

	json_add_null(report, "rate");
	json_add_null(report, "gbps");
	if (measured && !is_transfer(opt->workload))
		add_number(report, "rate", (double)t->requests / seconds);
	if (measured)
		add_number(report, "gbps", gbps(t->bytes_up + t->bytes_down, seconds));
	if (measured && t->least <= t->most) {
		o = json_object_new_object();
		add_number(o, "min_gbps", gbps(t->least, seconds));
		add_number(o, "max_gbps", gbps(t->most, seconds));
	}
	json_object_object_add(report, "fairness", o);
}

void report_client(const struct options *opt, const struct tally *t)
{
	struct json_object *o = json_object_new_object();
	double seconds = (double)t->measured_ns / NS_PER_S;

	json_add_text(o, "workload", workload_name(opt->workload));
	json_add_int(o, "connections", opt->connections);
	if (opt->workload != WORKLOAD_CRR) {
		json_add_int(o, "opened", t->opened);
		json_add_int(o, "failed", t->failed);
	}
	json_add_int(o, "size", opt->size);
	if (opt->workload == WORKLOAD_SLOW)
		json_add_int(o, "read_rate", opt->rate);
	add_number(o, "began", (double)t->began_ns / NS_PER_S);
	add_number(o, "seconds", seconds);
	json_add_int(o, "requests", t->requests);
	json_add_int(o, "bytes", t->bytes_up + t->bytes_down);
	json_add_int(o, "bytes_up", t->bytes_up);
	json_add_int(o, "bytes_down", t->bytes_down);
	add_rates(o, opt, t, seconds);
	if (opt->udp && is_transfer(opt->workload))
		json_add_int(o, "lossless", t->lossless);
	add_errors(o, t);
	json_add_int(o, "wrong", t->wrong);
	add_latency(o, &t->latency);
	print(o);
}

void report_sink(const struct sink_tally *t)
{
	struct json_object *o = json_object_new_object();

	json_add_int(o, "connections", t->connections);
	json_add_int(o, "bytes", t->received + t->sent);
	json_add_int(o, "bytes_received", t->received);
	json_add_int(o, "bytes_sent", t->sent);
	json_add_int(o, "wrong", t->wrong);
	json_add_int(o, "cut", t->cut);
	json_add_int(o, "bad_headers", t->bad_headers);
	print(o);
}
