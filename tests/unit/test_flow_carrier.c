// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "datapath/flow.h"

static void test_carrier(void **state)
{
	(void)state;
	for (unsigned int phase = 0; phase < FLOW_PHASES; phase++) {
		for (unsigned int c = CARRIER_COPY; c <= CARRIER_SPLICE; c++) {
			struct flow f = { .phase = (uint8_t)phase, .user_carrier = (uint8_t)c };
			enum carrier want = (enum carrier)c;

			if (phase == FLOW_KERNEL || phase == FLOW_FINISHING)
				want = CARRIER_SOCKMAP;
			else if (phase == FLOW_LEAVING)
				want = CARRIER_COPY; /* in rx, but what is passed is copied */
			assert_int_equal(flow_carrier(&f), want);
		}
	}
}

/* What has carried it to its end is remembered: user space, or the kernel. */
static void test_last_carrier(void **state)
{
	struct flow user = { .phase = FLOW_USER, .user_carrier = CARRIER_SPLICE };
	struct flow kernel = { .phase = FLOW_KERNEL, .user_carrier = CARRIER_SPLICE };
	struct flow left = { .phase = FLOW_LEAVING, .user_carrier = CARRIER_SPLICE };

	(void)state;
	flow_set_phase(&user, FLOW_DONE);
	assert_int_equal(flow_carrier(&user), CARRIER_SPLICE);
	flow_set_phase(&kernel, FLOW_FINISHING);
	flow_set_phase(&kernel, FLOW_DONE);
	assert_int_equal(flow_carrier(&kernel), CARRIER_SOCKMAP);
	flow_set_phase(&left, FLOW_DRAINING);
	flow_set_phase(&left, FLOW_USER);
	flow_set_phase(&left, FLOW_DONE);
	assert_int_equal(flow_carrier(&left), CARRIER_SPLICE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_carrier),
		cmocka_unit_test(test_last_carrier),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
