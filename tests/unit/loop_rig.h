/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_LOOP_RIG_H
#define CULVERT_TESTS_LOOP_RIG_H

/* A loop that runs so many batches and stops.  Include after cmocka.h. */

#include <stdbool.h>
#include <string.h>

#include "base/loop.h"

#define FAR 3600000 /* ms: does not come in this test */

struct rig {
	struct loop loop;
	unsigned int batches, stop_after;
};

static inline void count_batch(void *arg)
{
	struct rig *rig = arg;

	if (++rig->batches >= rig->stop_after)
		rig->loop.stop = true;
}

static inline int rig_setup(void **state)
{
	static struct rig rig;

	memset(&rig, 0, sizeof(rig));
	*state = &rig;
	return loop_open(&rig.loop, count_batch, &rig);
}

static inline int rig_teardown(void **state)
{
	loop_close(&((struct rig *)*state)->loop);
	return 0;
}

/* Runs N batches.  Something must be due or readable, or this blocks. */
static inline void run_batches(struct rig *rig, unsigned int n)
{
	rig->loop.stop = false;
	rig->batches = 0;
	rig->stop_after = n;
	assert_int_equal(loop_run(&rig->loop), 0);
	assert_int_equal(rig->batches, n);
}

#define ON_LOOP(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

#endif
