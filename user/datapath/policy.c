// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/policy.h"

#include "sockmap_contract.h"

unsigned int policy_settle_ms;
static _Atomic bool no_splice;

void policy_allow_splice(bool allowed)
{
	no_splice = !allowed;
}

void habit_restart(struct habit *h)
{
	*h = (struct habit){ .last_dir = h->last_dir,
			     .demotions = h->demotions,
			     .small_turns = h->small_turns };
}

void habit_read(struct habit *h, unsigned int dir, uint64_t bytes, uint32_t reads)
{
	if (!reads)
		return;
	if (dir != h->last_dir) {
		h->last_dir = (uint8_t)dir;
		h->turns += h->bytes[0] || h->bytes[1]; /* the first bytes change no direction */
		h->small_turns += h->run && h->run <= FAR_TURN && h->small_turns < UINT16_MAX;
		h->run = 0;
		h->run_reads = 0;
	}
	h->run = bytes < UINT32_MAX - h->run ? h->run + (uint32_t)bytes : UINT32_MAX;
	if (h->run > FAR_TURN)
		h->small_turns = 0;
	h->run_reads += reads;
	h->bytes[dir] += bytes;
	h->reads[dir] += reads;
}

void habit_demoted(struct habit *h)
{
	if (h->demotions < MAX_DEMOTIONS)
		h->demotions++;
	habit_restart(h);
}

bool habit_full(const struct habit *h)
{
	return h->bytes[0] + h->bytes[1] >= (UINT64_C(2) * WINDOW) << h->demotions;
}

uint64_t policy_far_idle_ms(const struct habit *h)
{
	return (uint64_t)FAR_IDLE_MS << h->demotions;
}

bool policy_graft_far(const struct habit *h, uint64_t silent_ms)
{
	return h->small_turns >= FAR_TURNS << h->demotions || silent_ms >= policy_far_idle_ms(h);
}

/* The carrier of bulk in user space. */
static enum carrier big(void)
{
	return no_splice ? CARRIER_COPY : CARRIER_SPLICE;
}

struct decision policy_start(enum engine engine)
{
	if (engine == ENGINE_AUTO)
		return (struct decision){ CARRIER_COPY, REASON_START };
	return (struct decision){ engine == ENGINE_COPY ? CARRIER_COPY : big(), REASON_ENGINE };
}

static uint64_t average(uint64_t bytes, uint64_t n)
{
	return n ? bytes / n : bytes;
}

/* Decide whether the kernel carries flow F from now on, for REASON. */
static struct decision promotion(const struct flow *f, enum reason reason, struct setting around)
{
	if (around.memory_short)
		return (struct decision){ CARRIER_COPY, REASON_KERNEL_MEMORY };
	if (around.watch_ms < policy_settle_ms)
		return (struct decision){ f->user_carrier, f->reason };
	return (struct decision){ CARRIER_SOCKMAP, reason };
}

static struct decision policy_auto(const struct habit *h, unsigned int dir, const struct flow *f,
				   struct setting around)
{
	uint64_t total = h->bytes[0] + h->bytes[1];
	uint64_t turn = average(total, (uint64_t)h->turns + 1);
	uint64_t turns_needed = (uint64_t)PROMOTE_TURNS << h->demotions;
	uint64_t reads_needed = (uint64_t)PROMOTE_READS << h->demotions;

	if (h->last_dir == dir && h->run >= BULK_RUN && average(h->run, h->run_reads) > SMALL_READ)
		return (struct decision){ big(), around.bulk };
	if (total >= WINDOW && turn >= BIG_TURN)
		return (struct decision){ big(), around.bulk };
	if (around.kernel_ok && h->turns >= turns_needed && turn < BIG_TURN)
		return promotion(f, REASON_CONVERSATION, around);
	if (around.kernel_ok && h->reads[dir] >= reads_needed &&
	    average(h->bytes[dir], h->reads[dir]) <= SMALL_READ)
		return promotion(f, REASON_SMALL_READS, around);
	return (struct decision){ f->user_carrier, f->reason };
}

struct decision policy_user(enum engine engine, const struct habit *h, unsigned int dir,
			    const struct flow *f, struct setting around)
{
	struct decision d = { f->user_carrier, f->reason };

	around.kernel_ok = around.kernel_ok && !around.limited;
	if (engine != ENGINE_AUTO && engine != ENGINE_COPY)
		d.carrier = big();
	if (engine == ENGINE_AUTO)
		d = policy_auto(h, dir, f, around);
	else if (engine == ENGINE_SOCKMAP && around.kernel_ok && around.memory_short)
		d.reason = REASON_KERNEL_MEMORY;
	else if (engine == ENGINE_SOCKMAP && around.kernel_ok &&
		 (!h->demotions || around.watch_ms >= (uint64_t)RETURN_MS << (h->demotions - 1)))
		d = (struct decision){ CARRIER_SOCKMAP, REASON_ENGINE };
	if (around.limited && (engine == ENGINE_AUTO || engine == ENGINE_SOCKMAP))
		d.reason = REASON_BANDWIDTH;
	return d;
}

struct decision policy_kernel(unsigned int kind)
{
	static const enum reason reasons[] = {
		[CULVERT_EVENT_SOFT] = REASON_SLOW_TARGET,
		[CULVERT_EVENT_PASSED] = REASON_HARD_LIMIT,
		[CULVERT_EVENT_BULK] = REASON_BULK,
		[CULVERT_EVENT_MEMORY] = REASON_KERNEL_MEMORY,
	};

	return (struct decision){ big(), reasons[kind] };
}
