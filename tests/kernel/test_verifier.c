/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the verifier says of each program of culvert, printed and bounded.  The figures differ
 * between kernels, so the bounds have room; but a program that comes near the limits of one kernel
 * (1,000,000 instructions walked, 512 bytes of stack) will be refused by another, and nothing else
 * would say so before that day.  It also costs time at each start: 804,690 instructions, as it once
 * was, took 0.8 s.
 */
#include <stdio.h>
#include <stdlib.h>

#include <linux/bpf.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/sockmap.skel.h"
#include "sockmap_contract.h"
#include "kt.h"

#define LOG_STATS 4 /* BPF_LOG_STATS: only the figures */
#define LOG_SIZE (64 * KIB)
#define FULL_BARRIER (BPF_ADD | BPF_FETCH)

/*
 * Measured on 6.18: the verdict 1,331 instructions walked, 98 states, 136 bytes of stack, 3,282
 * bytes of machine code; the gate 60, 6, 24, 306.  Bounds: about ten times what is walked, since
 * kernels differ in what they prune, which still leaves room for a factor of 60 to the limit; twice
 * the machine code, since other machines need more of it; and a little more stack, which is the
 * compiler's choice.
 */
static const struct bound {
	const char *program;
	unsigned long walked, states, stack, jited;
} bounds[] = {
	{ "culvert_verdict", 15000, 1000, 192, 6000 },
	{ "culvert_gate", 600, 60, 32, 600 },
};

struct figures {
	unsigned long walked, states, stack, jited;
};

#define N_PROGRAMS (sizeof(bounds) / sizeof(bounds[0]))

static struct sockmap_bpf *skel;
static char logs[N_PROGRAMS][LOG_SIZE];

static int load(void **state)
{
	size_t n = 0;
	struct bpf_program *prog;

	(void)state;
	skel = sockmap_bpf__open();
	if (!skel)
		return -1;
	skel->rodata->memory_limit = MIB; /* without a limit the verifier leaves code out */
	bpf_object__for_each_program(prog, skel->obj)
	{
		if (n == N_PROGRAMS)
			break;
		bpf_program__set_log_buf(prog, logs[n], LOG_SIZE);
		bpf_program__set_log_level(prog, LOG_STATS);
		n++;
	}
	return sockmap_bpf__load(skel);
}

static int unload(void **state)
{
	(void)state;
	sockmap_bpf__destroy(skel);
	return 0;
}

/* "64+24+0": of each frame on the deepest way. */
static unsigned long sum(const char *text)
{
	unsigned long total = 0;
	char *end;

	for (;; text = end + 1) {
		total += strtoul(text, &end, 10);
		if (*end != '+')
			return total;
	}
}

static const char *behind(const char *log, const char *words)
{
	const char *at = strstr(log, words);

	if (!at)
		print_error("no \"%s\" in: %s\n", words, log);
	assert_non_null(at);
	return at + strlen(words);
}

static struct figures read_figures(const struct bpf_program *prog, const char *log)
{
	struct bpf_prog_info info = { 0 };
	uint32_t len = sizeof(info);

	assert_int_equal(bpf_obj_get_info_by_fd(bpf_program__fd(prog), &info, &len), 0);
	return (struct figures){
		.walked = strtoul(behind(log, "processed "), NULL, 10),
		.states = strtoul(behind(log, "total_states "), NULL, 10),
		.stack = sum(behind(log, "stack depth ")),
		.jited = info.jited_prog_len,
	};
}

TEST(programs_stay_within_their_bounds)
{
	size_t n = 0;
	struct bpf_program *prog;

	bpf_object__for_each_program(prog, skel->obj)
	{
		const struct bound *b = &bounds[n];
		struct figures f;

		assert_true(n < N_PROGRAMS); /* a new program needs bounds */
		assert_string_equal(bpf_program__name(prog), b->program);
		f = read_figures(prog, logs[n++]);
		print_message(
			"%s: %lu instructions walked, %lu states, %lu bytes of stack, %lu bytes of "
			"machine code\n",
			b->program, f.walked, f.states, f.stack, f.jited);
		assert_in_range(f.walked, 1, b->walked);
		assert_in_range(f.states, 1, b->states);
		assert_in_range(f.stack, 0, b->stack);
		assert_in_range(f.jited, 1, b->jited); /* 0: not compiled, which the daemon needs */
	}
	assert_int_equal(n, N_PROGRAMS);
}

/*
 * pass() counts with an atomic add that returns the old value, which is a full barrier; the one
 * that returns nothing is none (include/sockmap_contract.h).  The compiler chooses between them by
 * whether the value is used.
 */
TEST(the_count_of_passed_bytes_is_a_full_barrier)
{
	const struct bpf_program *prog = skel->progs.culvert_verdict;
	const struct bpf_insn *insn = bpf_program__insns(prog);
	unsigned int full = 0;

	for (size_t i = 0; i < bpf_program__insn_cnt(prog); i++)
		if (insn[i].code == (BPF_STX | BPF_ATOMIC | BPF_DW) &&
		    insn[i].imm == FULL_BARRIER &&
		    insn[i].off == (short)offsetof(struct culvert_stat, passed))
			full++;
	print_message("%u atomic additions with a full barrier\n", full);
	assert_true(full > 0);
}

KT_MAIN(load, unload)
