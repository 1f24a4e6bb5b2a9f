// SPDX-License-Identifier: BSD-2-Clause
/*
 * Who may connect (user/config/acl.c): lists of rules, then clients.  The input is texts that end
 * in NUL, each with "+" or "-" in front of a list; what follows the first text without either is
 * clients.
 *
 * acl_add() drops elements that earlier rules decide.  The oracle keeps a list for each element,
 * and asks them one by one.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "config/acl.h"
#include "fuzz.h"

#define MODEL_MAX 2048

/* Each allows its element alone. */
static struct acl model[MODEL_MAX];
static bool model_allow[MODEL_MAX];
static size_t n_model;

/* True if LIST has no element that is wrong by itself. */
static bool model_add(bool allow, char *list)
{
	char *at, *element = strtok_r(list, ", \t", &at);

	for (; element; element = strtok_r(NULL, ", \t", &at)) {
		must(n_model < MODEL_MAX, "more elements than there can be");
		model[n_model] = (struct acl){ 0 };
		if (acl_add(&model[n_model], true, element)) {
			acl_close(&model[n_model]);
			return false;
		}
		model_allow[n_model++] = allow;
	}
	return true;
}

static bool model_allows(const struct sockaddr *client)
{
	bool allows = false;

	for (size_t i = 0; i < n_model; i++) {
		if (acl_allows(&model[i], client))
			return model_allow[i];
		allows |= model_allow[i];
	}
	return !allows;
}

static void check_client(const struct acl *a, struct input *in)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr un = { .sa_family = AF_UNIX };
	const struct sockaddr *clients[] = { &un, (struct sockaddr *)&v4, (struct sockaddr *)&v6 };
	unsigned int kind = input_byte(in) % 3;
	const uint8_t *bytes;
	size_t n = input_bytes(in, sizeof(v6.sin6_addr), &bytes);

	memcpy(&v4.sin_addr, bytes, n < 4 ? n : 4);
	memcpy(&v6.sin6_addr, bytes, n);
	must(acl_allows(a, clients[kind]) == model_allows(clients[kind]), "kind %u", kind);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct acl a = { 0 }, copy;
	bool more = true, whole = true;

	n_model = 0;
	while (more && whole && in.left) {
		char *text = input_text(&in);
		bool allow = text[0] == '+';
		int r;

		more = allow || text[0] == '-';
		if (more) {
			r = acl_add(&a, allow, text + 1);
			must(r == 0 || r == -EINVAL, "%d", r);
			whole = !r;
			must(model_add(allow, text + 1) || r, "an element is wrong by itself");
		}
		free(text);
	}
	copy = a;
	copy.shared = true;
	must(acl_same(&a, &copy), "a list differs from one with the same rules");
	while (whole && in.left)
		check_client(&copy, &in);
	acl_close(&copy);
	acl_close(&a);
	for (size_t i = 0; i < n_model; i++)
		acl_close(&model[i]);
	return 0;
}
