/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_add.h"

/* Counts how many values were released. */
static unsigned int released;

static void count_release(struct json_object *o, void *arg)
{
	(void)o;
	(void)arg;
	released++;
}

static struct json_object *make_value(void)
{
	struct json_object *o = json_object_new_string("x");

	assert_non_null(o);
	json_object_set_userdata(o, NULL, count_release);
	return o;
}

static void test_added(void **state)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	size_t len;

	(void)state;
	released = 0;
	json_begin();
	json_append(list, make_value());
	json_add(o, "list", list);
	json_add(o, "value", make_value());
	json_add_null(o, "nothing");
	assert_false(json_lacks());
	assert_string_equal(json_line(o, 0, &len),
			    "{\"list\":[\"x\"],\"value\":\"x\",\"nothing\":null}");
	assert_int_equal(len, strlen(json_line(o, 0, &len)));
	assert_int_equal(released, 0);
	json_object_put(o);
	assert_int_equal(released, 2);
}

/* What there was no memory for is NULL: nothing can be added to it, and nothing is lost. */
static void test_no_parent(void **state)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	size_t len;

	(void)state;
	released = 0;
	json_add(NULL, "key", make_value());
	assert_int_equal(released, 1);
	json_append(NULL, make_value());
	assert_int_equal(released, 2);
	json_add(NULL, "key", NULL);
	json_append(NULL, NULL);
	json_add_null(NULL, "key");

	json_begin();
	json_add(o, "key", NULL);
	assert_true(json_lacks());
	assert_null(json_line(o, 0, &len));
	json_begin();
	assert_false(json_lacks());
	assert_string_equal(json_line(o, 0, &len), "{}");
	json_append(list, NULL);
	assert_true(json_lacks());
	assert_int_equal(json_object_array_length(list), 0);
	json_begin();
	json_add_null(NULL, "key");
	assert_true(json_lacks());
	json_begin();
	json_lack();
	assert_true(json_lacks());
	assert_null(json_line(NULL, 0, &len));
	json_object_put(o);
	json_object_put(list);
}

/* An object that contains itself is refused by json-c: what is refused is released. */
static void test_refused(void **state)
{
	struct json_object *o = json_object_new_object();

	(void)state;
	released = 0;
	json_begin();
	json_object_set_userdata(o, NULL, count_release);
	json_add(o, "itself", json_object_get(o));
	assert_int_equal(released, 0);
	assert_true(json_lacks());
	json_object_put(o);
	assert_int_equal(released, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_added),
		cmocka_unit_test(test_no_parent),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
