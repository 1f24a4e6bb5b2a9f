// SPDX-License-Identifier: BSD-2-Clause
#include "report.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

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

static struct json_object *resources(const struct tally *t, unsigned int processes)
{
	struct json_object *o = json_object_new_object();

	add_count(o, "processes", processes);
	add_number(o, "cpu_seconds", (double)t->cpu_ns / 1e9, 6);
	add_count(o, "max_rss_kib", t->max_rss_kib);
	return o;
}

/* Figures that are per second of measured time.  idle has none: it only holds. */
static void add_rates(struct json_object *o, const struct options *opt, const struct tally *t,
		      double seconds)
{
	double bytes = (double)(t->bytes_up + t->bytes_down);
	bool rates = seconds > 0 && opt->workload != WORKLOAD_IDLE;

	json_object_object_add(o, "rate", rates && !workload_is_transfer(opt->workload)
						  ? number((double)t->requests / seconds, 3)
						  : NULL);
	json_object_object_add(o, "gbps", rates ? number(bytes * 8 / seconds / 1e9, 9) : NULL);
	if (workload_is_transfer(opt->workload))
		json_object_object_add(o, "fairness", fairness(t, seconds));
}

void report_client(const struct options *opt, const struct tally *t, unsigned int processes)
{
	struct json_object *o = json_object_new_object();
	double seconds = (double)t->measured_ns / 1e9;

	json_object_object_add(o, "workload",
			       json_object_new_string(workload_name(opt->workload)));
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
	json_object_object_add(o, "latency_us", latency(&t->latency));
	json_object_object_add(o, "errors", errors(t));
	json_object_object_add(o, "connect_errors", connect_errors(t));
	add_count(o, "wrong", t->wrong);
	json_object_object_add(o, "resources", resources(t, processes));
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
