// SPDX-License-Identifier: BSD-2-Clause
/* Sizes and times, as they are written and as they are shown. */
#include <errno.h>

#include "unit.h"
#include "base/parse_size.h"

TEST(test_size_parse)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{ "0", 0 },       { "123", 123 },      { "64K", 65536 },
		{ "64k", 65536 }, { "1M", 1 << 20 },   { "2g", 2ULL << 30 },
		{ "007", 7 },     { "1.5M", 3 << 19 }, { "8388607G", 8388607ULL << 30 },
	};
	static const char *const bad[] = {
		"",   "K",   "-1",  "+1",  " 1", "1 ",   "1 K",  "1.5.5M",
		"1T", "1iB", "1Ki", "1KB", "1B", "1KiB", "0x10", "99999999999999999999X",
	};
	uint64_t bytes = 42;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (size_parse(bad[i], &bytes) != -EINVAL)
			fail_msg("\"%s\"", bad[i]);
	assert_int_equal(size_parse("18446744073709551616", &bytes), -ERANGE);
	assert_int_equal(size_parse("8388609G", &bytes), -ERANGE);
	assert_int_equal(bytes, 42);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(size_parse(good[i].text, &bytes), 0);
		assert_true(bytes == good[i].bytes);
	}
}

TEST(test_seconds_parse)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} good[] = {
		{ "0", 0 },         { "5", 5000 },       { "0.5", 500 },
		{ ".5", 500 },      { ".3", 300 },       { ".001", 1 },
		{ ".0", 0 },        { "1.25", 1250 },    { "99999999999", 99999999999000 },
		{ "01.010", 1010 }, { "2s", 2000 },      { "30m", 1800000 },
		{ "1h", 3600000 },  { ".5d", 43200000 },
	};
	static const char *const bad[] = {
		"",    ".",  "..5", ".5.", "-1",    "-.5", ".-5", "+1", "1e3",   "nan", "inf",
		"1,5", " 1", "1 ",  "0x1", "1.5.5", "1ms", "1hs", "h",  "1h30m", "1 h",
	};
	uint64_t ms;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(seconds_parse(good[i].text, &ms), 0);
		assert_int_equal(ms, good[i].ms);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (seconds_parse(bad[i], &ms) != -EINVAL)
			fail_msg("accepted \"%s\"", bad[i]);
	assert_int_equal(seconds_parse("999999999999d", &ms), -ERANGE);
}

TEST(test_size_format)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{ 0, "0 B" },
		{ 1023, "1023 B" },
		{ 1024, "1 KiB" },
		{ 1025, "1.001 KiB" },
		{ 1536, "1.5 KiB" },
		{ 102399, "100 KiB" },
		{ 102400, "100 KiB" },
		{ 1048000, "1023 KiB" },
		{ 1 << 20, "1 MiB" },
		{ 3ULL << 39, "1.5 TiB" },
		{ UINT64_MAX, "16 EiB" },
	};
	char buf[SIZE_STRLEN], small[4];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(size_format(cases[i].bytes, buf, sizeof(buf)), cases[i].text);
	assert_string_equal(size_format(1023, small, sizeof(small)), "102");
}

UNIT_MAIN(NULL, NULL)
