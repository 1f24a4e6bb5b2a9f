// SPDX-License-Identifier: BSD-2-Clause
/*
 * The options are those of the command table, "--forward NAME" for the key "forward", and a few of
 * the client's own.  The request is made of them, and checked by what the daemon checks it with: so
 * what it would refuse as wrong is refused here, without a daemon.
 */
#include "cli/client_words.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/json_add.h"
#include "base/log.h"
#include "base/size.h"
#include "base/command.h"
#include "config/config.h"
#include "config/config_control.h"
#include "daemon/control_client.h"

enum own { OWN_JSON, OWN_CONTROL, OWN_CONFIG, OWN_HELP, OWNS };

static const struct {
	const char *name, *metavar, *help;
} own_options[OWNS] = {
	[OWN_JSON] = { "json", NULL, "print the daemon's answer as JSON, see culvert(8)" },
	[OWN_CONTROL] = { "control", "PATH",
			  "control socket of the daemon (default " CONFIG_CONTROL_DEFAULT ")" },
	[OWN_CONFIG] = { "config", "FILE",
			 "ask the daemon of this configuration file: where its `control` says" },
	[OWN_HELP] = { "help", NULL, "show this help; also -h" },
};

/* --- help --- */

static void print_option(const char *name, const char *metavar, const char *help)
{
	char left[32];

	snprintf(left, sizeof(left), "--%s %s", name, metavar ? metavar : "");
	printf("  %-20s%s\n", left, help);
}

static void print_usage(const struct command *c)
{
	printf("Usage: culvert %s", c->name);
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];
		bool needed = c->required >> c->keys[i] & 1;

		if (!(c->positional >> c->keys[i] & 1))
			continue;
		printf(needed ? " %s%s" : " [%s%s]", key->metavar,
		       key->type == TYPE_IDS ? "..." : "");
	}
	printf(" [options]\n\n%s\n\nOptions:\n", c->about);
}

void client_words_help(const struct command *c)
{
	print_usage(c);
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];

		print_option(key->name, key->metavar, key->help);
	}
	for (size_t i = 0; i < OWNS; i++)
		print_option(own_options[i].name, own_options[i].metavar, own_options[i].help);
}

/* --- the request --- */

static int add_id(struct json_object *request, const char *name, const char *text)
{
	struct json_object *list;
	uint64_t id;
	bool first;

	if (count_parse(text, &id) || id > INT64_MAX)
		return -EINVAL;
	first = !json_object_object_get_ex(request, name, &list);
	if (first)
		list = json_object_new_array();
	json_append(list, json_object_new_int64((int64_t)id));
	if (first) /* last: it is released if it cannot be added */
		json_add(request, name, list);
	return 0;
}

static int add_seconds(const struct command *c, struct json_object *request,
		       const struct command_key_def *key, const char *text)
{
	uint64_t ms;

	if (seconds_parse(text, &ms) || ms > INT32_MAX)
		return log_complain(-EINVAL, "%s: %s: \"%.256s\": expected seconds", c->name,
				    key->name, text);
	json_add(request, key->name, ms % 1000 ? json_object_new_double((double)ms / 1000)
					       : json_object_new_int64((int64_t)(ms / 1000)));
	return 0;
}

/* TEXT: NULL for a flag. */
static int add_key(const struct command *c, struct json_object *request,
		   const struct command_key_def *key, const char *text)
{
	if (key->type == TYPE_IDS) {
		if (!add_id(request, key->name, text))
			return 0;
		return log_complain(-EINVAL, "%s: \"%.256s\": expected the number of a session",
				    c->name, text);
	}
	if (text && json_object_object_get_ex(request, key->name, NULL))
		return log_complain(-EINVAL, "%s: %s: given twice", c->name, key->name);
	if (key->type == TYPE_SECONDS)
		return add_seconds(c, request, key, text);
	json_add(request, key->name,
		 text ? json_object_new_string(text) : json_object_new_boolean(true));
	return 0;
}

/* --- words --- */

static int complain_unknown(const struct command *c, const char *word)
{
	return log_complain(-EINVAL, "\"%.256s\": unknown argument (`culvert help %s` lists them)",
			    word, c->name);
}

static const struct command_key_def *find_key(const struct command *c, const char *name, size_t len)
{
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];

		if (strlen(key->name) == len && !strncmp(key->name, name, len))
			return key;
	}
	return NULL;
}

static enum own find_own(const char *name, size_t len)
{
	enum own o = OWN_JSON;

	while (o < OWNS && (strlen(own_options[o].name) != len ||
			    strncmp(own_options[o].name, name, len) != 0))
		o++;
	return o;
}

static void store_own(struct client_words *w, enum own o, const char *value)
{
	if (o == OWN_CONTROL)
		w->control = value;
	else if (o == OWN_CONFIG)
		w->config = value;
	else if (o == OWN_JSON)
		w->json = true;
	else
		w->help = true;
}

/* Take the option at ARGV[*POS], and its value; leaves *POS on the last word used. */
static int take_option(const struct command *c, int argc, char **argv, int *pos,
		       struct client_words *w)
{
	const char *word = argv[*pos];
	const char *name = !strcmp(word, "-c") ? "config" : !strcmp(word, "-h") ? "help" : word + 2;
	size_t len = strcspn(name, "=");
	const char *value = name[len] ? name + len + 1 : NULL;
	const struct command_key_def *key = find_key(c, name, len);
	enum own own = find_own(name, len);
	const char *metavar;

	if (!key && own == OWNS)
		return complain_unknown(c, word);
	metavar = key ? key->metavar : own_options[own].metavar;
	name = key ? key->name : own_options[own].name;
	if (!metavar && value)
		return log_complain(-EINVAL, "--%s: takes no value", name);
	if (metavar && !value && *pos + 1 < argc && strncmp(argv[*pos + 1], "--", 2) != 0)
		value = argv[++*pos];
	if (metavar && (!value || !value[0]))
		return log_complain(-EINVAL, "--%s: needs a value: %s", name, metavar);
	if (key)
		return add_key(c, w->request, key, value);
	store_own(w, own, value);
	return 0;
}

/* A word that is no option: the next key that may be one.  Ids may be several. */
static int take_word(const struct command *c, const char *word, struct client_words *w)
{
	for (size_t i = 0; i < c->n_keys; i++) {
		const struct command_key_def *key = &command_keys[c->keys[i]];

		if (!(c->positional >> c->keys[i] & 1))
			continue;
		if (key->type == TYPE_IDS ||
		    !json_object_object_get_ex(w->request, key->name, NULL))
			return add_key(c, w->request, key, word);
	}
	return complain_unknown(c, word);
}

/* The socket to ask at.  What the command line says counts. */
static int find_control(struct client_words *w)
{
	size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);
	int r = 0;

	if (!w->control && w->config) {
		r = config_control(w->config, &w->named);
		w->control = w->named;
	} else if (!w->control) {
		w->control = CONFIG_CONTROL_DEFAULT;
	}
	if (!r && strlen(w->control) >= room)
		return log_complain(-EINVAL, "%s: \"%.256s\" is too long, expected at most %zu "
				    "bytes", w->named ? w->config : "--control", w->control,
				    room - 1);
	return r;
}

/* What the daemon would say of it. */
static int check_request(const struct command *c, const char *line)
{
	struct command_request req;
	struct json_object *why, *error, *message;

	if (!line) /* what lacks something would ask for something else */
		return -ENOMEM;
	if (strlen(line) >= CONTROL_REQUEST_MAX - 1)
		return log_complain(-EINVAL, "%s: too much for one request", c->name);
	if (command_parse(line, strlen(line), &req, &why)) {
		command_close(&req);
		return 0;
	}
	if (!json_lacks() && json_object_object_get_ex(why, "error", &error) &&
	    json_object_object_get_ex(error, "message", &message))
		log_complain(-EINVAL, "%s", json_object_get_string(message));
	json_object_put(why);
	return json_lacks() ? -ENOMEM : -EINVAL;
}

int client_words_parse(const struct command *c, int argc, char **argv, struct client_words *ret)
{
	size_t len;
	int r = 0;

	json_begin();
	*ret = (struct client_words){ .request = json_object_new_object() };
	json_add(ret->request, "command", json_object_new_string(c->name));
	for (int i = 1; !r && i < argc; i++)
		r = !strncmp(argv[i], "--", 2) || !strcmp(argv[i], "-c") || !strcmp(argv[i], "-h")
			    ? take_option(c, argc, argv, &i, ret)
			    : take_word(c, argv[i], ret);
	if (r || ret->help)
		return r;
	r = find_control(ret);
	if (r)
		return r;
	ret->line = json_line(ret->request, JSON_C_TO_STRING_NOSLASHESCAPE, &len);
	return check_request(c, ret->line);
}

void client_words_close(struct client_words *w)
{
	json_object_put(w->request);
	free(w->named);
	*w = (struct client_words){ .control = NULL };
}
