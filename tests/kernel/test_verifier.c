/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the verifier says of each program of culvert, printed and bounded.  The figures differ
 * between kernels, so the bounds have room; but a program that comes near the limit of one kernel
 * (1,000,000 instructions walked) will be refused by another, and nothing else would say so before
 * that day.  It also costs time at each start: 804,690 instructions, as it once was, took 0.8 s.
 */
#include <linux/bpf.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/graft.skel.h"
#include "bpf/sockmap.skel.h"
#include "sockmap_contract.h"
#include "kt.h"

#define FULL_BARRIER (BPF_ADD | BPF_FETCH)

/*
 * Measured on 6.18: the verdict 1,331 instructions walked and 3,282 bytes of machine code; the gate
 * 60 and 306.  Bounds: about ten times what is walked, since kernels differ in what they prune, which
 * still leaves room for a factor of 60 to the limit; twice the machine code, since other machines
 * need more of it.  Programs of grafts: graft_in 98,839 and 46,187, of which sessions from the SYN on
 * have a quarter; graft_out 25,531 and 12,790; the offer 4,496 and 9,503.  6.1 prunes less: 123,053,
 * 106,221 and 7,328.  Bounds: three times what is walked at most, which leaves a factor of three to
 * the limit.
 */
static const struct bound {
	const char *program;
	unsigned int walked, jited;
} bounds[] = {
	{ "culvert_verdict", 15000, 6000 }, { "culvert_gate", 600, 600 },
	{ "graft_offer", 18000, 18000 },    { "graft_in", 300000, 92000 },
	{ "graft_out", 300000, 26000 },     { "graft_in_l3", 300000, 92000 },
	{ "graft_out_l3", 300000, 26000 },
};

#define N_PROGRAMS (sizeof(bounds) / sizeof(bounds[0]))

static struct sockmap_bpf *skel;
static struct graft_bpf *graft;

static int load(void **state)
{
	(void)state;
	skel = sockmap_bpf__open();
	if (!skel)
		return -1;
	skel->rodata->memory_limit = MIB; /* without a limit the verifier leaves code out */
	graft = graft_bpf__open();
	return sockmap_bpf__load(skel) || !graft || graft_bpf__load(graft) ? -1 : 0;
}

static int unload(void **state)
{
	(void)state;
	sockmap_bpf__destroy(skel);
	graft_bpf__destroy(graft);
	return 0;
}

/* The programs of OBJ, whose bounds begin at FIRST.  Returns the number of the next one. */
static size_t check(struct bpf_object *obj, size_t first)
{
	size_t n = first;
	struct bpf_program *prog;

	bpf_object__for_each_program(prog, obj)
	{
		const struct bound *b = &bounds[n++];
		struct bpf_prog_info info = { 0 };
		uint32_t len = sizeof(info);

		assert_true(n <= N_PROGRAMS); /* a new program needs bounds */
		assert_string_equal(bpf_program__name(prog), b->program);
		assert_int_equal(bpf_obj_get_info_by_fd(bpf_program__fd(prog), &info, &len), 0);
		print_message("%s: %u instructions walked, %u bytes of machine code\n", b->program,
			      info.verified_insns, info.jited_prog_len);
		assert_in_range(info.verified_insns, 1, b->walked);
		/* 0: not compiled, which the daemon needs */
		assert_in_range(info.jited_prog_len, 1, b->jited);
	}
	return n;
}

TEST(programs_stay_within_their_bounds)
{
	assert_int_equal(check(graft->obj, check(skel->obj, 0)), N_PROGRAMS);
}

/* --- stack --- */

#define STACK_MOST 512 /* MAX_BPF_STACK */

static bool is_call(const struct bpf_insn *insn)
{
	return insn->code == (BPF_JMP | BPF_CALL) && insn->src_reg == BPF_PSEUDO_CALL;
}

/* The lowest byte that INSN touches below the frame pointer; FROM_FP: registers that were copies of it. */
static int depth_of(const struct bpf_insn *insn, bool from_fp[])
{
	int class = BPF_CLASS(insn->code);
	bool was = from_fp[insn->dst_reg];

	if (class == BPF_LDX)
		return insn->src_reg == BPF_REG_10 ? -insn->off : 0;
	if (class == BPF_ST || class == BPF_STX)
		return insn->dst_reg == BPF_REG_10 ? -insn->off : 0;
	if (class != BPF_ALU64)
		return 0;
	from_fp[insn->dst_reg] = insn->code == (BPF_ALU64 | BPF_MOV | BPF_X) &&
				 insn->src_reg == BPF_REG_10;
	return was && BPF_OP(insn->code) == BPF_ADD && BPF_SRC(insn->code) == BPF_K ? -insn->imm :
										      0;
}

/*
 * Stack of the function at AT of PROG and of the functions that it calls, whose sums STACK has; 0 where no
 * function begins.  check_max_stack_depth() of Linux 6.1 rounds each frame up to 32 bytes; later
 * kernels are more lenient.
 */
static int stack_of(const struct bpf_program *prog, const int *stack, size_t at)
{
	const struct bpf_insn *insn = bpf_program__insns(prog);
	bool from_fp[MAX_BPF_REG] = { false };
	int frame = 1, below = 0;

	for (size_t i = at; i < bpf_program__insn_cnt(prog) && (i == at || !stack[i]); i++) {
		int depth = depth_of(&insn[i], from_fp);
		int called = is_call(&insn[i]) ? stack[i + 1 + (size_t)insn[i].imm] : 0;

		frame = depth > frame ? depth : frame;
		below = called > below ? called : below;
	}
	return (frame + 31) / 32 * 32 + below;
}

TEST(the_stack_fits_linux_6_1)
{
	struct bpf_program *prog;

	bpf_object__for_each_program(prog, graft->obj)
	{
		const struct bpf_insn *insn = bpf_program__insns(prog);
		size_t n = bpf_program__insn_cnt(prog);
		int *stack = test_calloc(n, sizeof(*stack));

		stack[0] = 1;
		for (size_t i = 0; i < n; i++)
			if (is_call(&insn[i]))
				stack[i + 1 + (size_t)insn[i].imm] = 1;
		for (int depth = 0; depth < 8; depth++) /* MAX_CALL_FRAMES */
			for (size_t i = 0; i < n; i++)
				stack[i] = stack[i] ? stack_of(prog, stack, i) : 0;
		print_message("%s: %d bytes of stack\n", bpf_program__name(prog), stack[0]);
		assert_in_range(stack[0], 32, STACK_MOST);
		test_free(stack);
	}
}

/* --- barriers --- */

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
