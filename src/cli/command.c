#define _GNU_SOURCE /* asprintf */
#include "cli/command.h"

#include "cli/arguments.h"

#include <argp.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 512 };
enum { FIRST_KEY = 0x100 }; /* for argp, a row's key is this and its number */

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory)
        return memory;
    cli_complain("no memory for the command line");
    exit(CLI_EXIT_ERROR);
}

const sl_option *cli_row(const cli_command *command, int number, const cli_table **table)
{
    for (int t = 0; t < CLI_MOST_TABLES; t++) {
        *table = &command->tables[t];
        for (const sl_option *at = (*table)->rows; at && at->name; at++)
            if (number-- == 0)
                return at;
    }
    return NULL;
}

static int count_rows(const cli_command *command)
{
    const cli_table *table;
    int count = 0;
    while (cli_row(command, count, &table))
        count++;
    return count;
}

static const sl_option *find_name(const cli_command *command, const char *name)
{
    const sl_option *found = NULL;
    for (int t = 0; t < CLI_MOST_TABLES && !found && command->tables[t].rows; t++)
        found = sl_option_find(command->tables[t].rows, name);
    return found;
}

/* ---- Help --------------------------------------------------------------------------------- */

char *cli_default_text(const cli_command *command, const cli_table *table, const sl_option *option)
{
    char *text = NULL, *settings = allocate(1, command->settings_bytes);
    command->set_defaults(settings);
    if (option->type != SL_OPTION_FLAG)
        (void)sl_option_text(option, settings + table->offset, &text);
    free(settings);
    return text;
}

/* "1 to 4096; default 10", what there is of it; "" for nothing. */
static void describe_value(const cli_command *command, const cli_table *table,
                           const sl_option *option, char *text, size_t bytes)
{
    char *value = cli_default_text(command, table, option);
    int used = 0;
    *text = '\0';
    if (option->highest != 0)
        used = snprintf(text, bytes, "%" PRId64 " to %" PRId64, option->lowest, option->highest);
    else if (option->lowest != 0)
        used = snprintf(text, bytes, "from %" PRId64, option->lowest);
    if (value)
        snprintf(text + used, bytes - (size_t)used, "%sdefault %s", used ? "; " : "", value);
    free(value);
}

/* The help of a row, with its range and default: malloc'ed. */
static char *help_text(const cli_command *command, const cli_table *table, const sl_option *option)
{
    char *help, value[256];
    describe_value(command, table, option, value, sizeof value);
    int length = *value ? asprintf(&help, "%s (%s)", option->help, value)
                        : asprintf(&help, "%s", option->help);
    return length < 0 ? NULL : help;
}

static bool is_same_group(const sl_option *a, const sl_option *b)
{
    return a->group == b->group || (a->group && b->group && strcmp(a->group, b->group) == 0);
}

/* Each row stands behind the last one of its group that has come before, so groups are in the order
 * in which they first come. */
int cli_list_rows(const cli_command *command, cli_listed_row **out)
{
    int count = 0;
    const cli_table *table;
    const sl_option *row;
    cli_listed_row *list = allocate((size_t)count_rows(command) + 1, sizeof *list);
    for (int i = 0; (row = cli_row(command, i, &table)); i++) {
        int at = count;
        while (at > 0 && !is_same_group(list[at - 1].row, row))
            at--;
        if (at == 0)
            at = count;
        memmove(list + at + 1, list + at, (size_t)(count - at) * sizeof *list);
        list[at] = (cli_listed_row){row, table, i};
        count++;
    }
    *out = list;
    return count;
}

/* argp sorts the options of each group; a heading is an entry of its own. Freed by free_options. */
static struct argp_option *make_options(const cli_command *command)
{
    cli_listed_row *list;
    int count = cli_list_rows(command, &list), group = 0;
    struct argp_option *options = allocate(3 * (size_t)count + 1, sizeof *options), *at = options;
    for (int i = 0; i < count; i++) {
        const sl_option *row = list[i].row;
        char *heading;
        if (i == 0 || !is_same_group(row, list[i - 1].row)) {
            group++;
            if (row->group && asprintf(&heading, "%s:", row->group) > 0)
                *at++ = (struct argp_option){.doc = heading, .group = group};
        }
        *at++ = (struct argp_option){row->name,
                                     FIRST_KEY + list[i].number,
                                     row->value,
                                     0,
                                     help_text(command, list[i].table, row),
                                     group};
        if (row->letter)
            *at++ = (struct argp_option){.key = row->letter, .flags = OPTION_ALIAS};
    }
    free(list);
    return options;
}

static void free_options(struct argp_option *options)
{
    for (struct argp_option *at = options; at->name || at->key || at->doc; at++)
        free((char *)at->doc);
    free(options);
}

/* ---- Reading ------------------------------------------------------------------------------ */

static void take_option(cli_command_line *to, int number, const char *text)
{
    const cli_table *table;
    const sl_option *option = cli_row(to->command, number, &table);
    to->given[to->given_count++] =
        (cli_given_option){option, table->offset, option->value ? text : NULL};
}

static void take_word(cli_command_line *to, struct argp_state *state, char *word)
{
    char sentence[SENTENCE_BYTES];
    if (to->command->program) {
        to->word_count = state->argc - state->next + 1;
        memcpy(to->words, &state->argv[state->next - 1], (size_t)to->word_count * sizeof(char *));
        state->next = state->argc;
        return;
    }
    if (!to->command->arguments) {
        snprintf(sentence, sizeof sentence, "%s takes options only", to->command->name);
        cli_refuse(sentence, word);
    }
    to->words[to->word_count++] = word;
}

static int number_of_letter(const cli_command *command, int letter)
{
    const cli_table *table;
    for (int i = 0; i < count_rows(command); i++)
        if (cli_row(command, i, &table)->letter == letter)
            return i;
    return -1;
}

/* Names all options that a word is the beginning of: more than one, or argp had taken it. */
static _Noreturn void refuse_ambiguous(const cli_command *command, const char *name)
{
    char names[SENTENCE_BYTES] = "";
    const cli_table *table;
    const sl_option *row;
    size_t used = 0, length = strlen(name);
    for (int i = 0; (row = cli_row(command, i, &table)) && used < sizeof names; i++)
        if (strncmp(row->name, name, length) == 0)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s--%s", used ? ", " : "",
                                     row->name);
    cli_complain("--%s is ambiguous: %s", name, names);
    exit(CLI_EXIT_USAGE);
}

static bool begins_option(const cli_command *command, const char *name)
{
    const cli_table *table;
    const sl_option *row;
    for (int i = 0; *name && (row = cli_row(command, i, &table)); i++)
        if (strncmp(row->name, name, strlen(name)) == 0)
            return true;
    return false;
}

static _Noreturn void refuse_unknown(const cli_command *command, const char *word, const char *name)
{
    char sentence[SENTENCE_BYTES];
    cli_near near = {.word = name};
    const cli_table *table;
    for (int i = 0; i < count_rows(command); i++)
        cli_near_consider(&near, cli_row(command, i, &table)->name);
    snprintf(sentence, sizeof sentence, "there is no such option (see sluice %s --help)",
             command->name);
    cli_refuse_near(sentence, word, &near, "--");
}

/* For an option at which argp stopped: its value is missing, it takes none, or there is none of
 * that name. argp's own --help is off, since with it come errors of two lines. */
static _Noreturn void end_at_option(const cli_command *command, const struct argp_state *state)
{
    char sentence[SENTENCE_BYTES], name[64];
    const cli_table *table;
    const char *word = state->argv[state->next - 1];
    if (word[0] != '-' && state->next < state->argc)
        word = state->argv[state->next]; /* of "-xyz", argp stops at x */
    if (strcmp(word, "--help") == 0) {
        cli_print_help(command, stdout);
        exit(cli_finish(SL_OK));
    }
    size_t length = strcspn(word, "=");
    snprintf(name, sizeof name, "%.*s", length > 2 ? (int)length - 2 : 0, word + 2);
    const sl_option *option = find_name(command, name);
    if (word[0] == '-' && word[1] && word[1] != '-' && number_of_letter(command, word[1]) >= 0)
        option = cli_row(command, number_of_letter(command, word[1]), &table);
    if (option) {
        snprintf(sentence, sizeof sentence,
                 option->value ? "--%s needs a value" : "--%s takes no value", option->name);
        cli_refuse(sentence, option->value ? NULL : word + length + (word[length] == '='));
    }
    if (begins_option(command, name))
        refuse_ambiguous(command, name);
    refuse_unknown(command, word, name);
}

static error_t take(int key, char *text, struct argp_state *state)
{
    cli_command_line *to = state->input;
    int rows = count_rows(to->command);
    if (key > 0 && key < FIRST_KEY && number_of_letter(to->command, key) >= 0)
        key = FIRST_KEY + number_of_letter(to->command, key);
    if (key >= FIRST_KEY && key < FIRST_KEY + rows) {
        take_option(to, key - FIRST_KEY, text);
        return 0;
    }
    if (key == ARGP_KEY_ARG) {
        take_word(to, state, text);
        return 0;
    }
    if (key == ARGP_KEY_ERROR)
        end_at_option(to->command, state);
    return ARGP_ERR_UNKNOWN;
}

static struct argp make_parser(const cli_command *command)
{
    return (struct argp){.options = make_options(command),
                         .parser = take,
                         .args_doc = command->arguments,
                         .doc = command->doc};
}

void cli_read(const cli_command *command, int argc, char **argv, cli_command_line *out)
{
    struct argp parser = make_parser(command);
    *out = (cli_command_line){.command = command, .argc = argc, .argv = argv};
    out->given = allocate((size_t)argc + 1, sizeof *out->given);
    out->words = allocate((size_t)argc + 1, sizeof *out->words);
    unsigned flags = ARGP_NO_ERRS | ARGP_NO_HELP | (command->program ? ARGP_IN_ORDER : 0);
    if (argp_parse(&parser, argc, argv, flags, NULL, out) != 0)
        cli_refuse("the options could not be read", NULL);
    free_options((struct argp_option *)parser.options);
}

void cli_command_line_clear(cli_command_line *line)
{
    json_decref(line->config);
    free(line->given);
    free(line->words);
}

void cli_print_help(const cli_command *command, FILE *to)
{
    char name[32];
    struct argp parser = make_parser(command);
    snprintf(name, sizeof name, "sluice %s", command->name);
    argp_help(&parser, to, ARGP_HELP_STD_HELP, name);
    free_options((struct argp_option *)parser.options);
}

/* ---- What was given ----------------------------------------------------------------------- */

const char *cli_given(const cli_command_line *line, const char *name)
{
    for (int i = line->given_count - 1; i >= 0; i--)
        if (strcmp(line->given[i].option->name, name) == 0)
            return line->given[i].text ? line->given[i].text : "";
    return NULL;
}

void cli_check_needs(const cli_command_line *line)
{
    char sentence[SENTENCE_BYTES];
    for (int i = 0; i < line->given_count; i++) {
        const sl_option *option = line->given[i].option;
        if (!option->needs || cli_given(line, option->needs))
            continue;
        const sl_option *needed = find_name(line->command, option->needs);
        snprintf(sentence, sizeof sentence, "--%s needs --%s%s%s", option->name, needed->name,
                 needed->value ? " " : "", needed->value ? needed->value : "");
        cli_refuse(sentence, NULL);
    }
}

static void set_option(const cli_given_option *given, void *object)
{
    char sentence[SENTENCE_BYTES];
    const sl_option *option = given->option;
    if (sl_option_set(option, object, given->text) == SL_OK)
        return;
    cli_near near = {.word = given->text};
    for (int i = 0; option->choices && option->choices[i]; i++)
        cli_near_consider(&near, option->choices[i]);
    snprintf(sentence, sizeof sentence, "--%s%s%s%s", sl_error_text(),
             near.best ? ": did you mean " : "", near.best ? near.best : "", near.best ? "?" : "");
    cli_refuse(sentence, NULL);
}

void cli_set_given(const cli_command_line *line, int first, int end, void *settings)
{
    for (int i = first; i < end; i++)
        set_option(&line->given[i], (char *)settings + line->given[i].offset);
}

void cli_set(const cli_command_line *line, void *settings)
{
    line->command->set_defaults(settings);
    cli_set_given(line, 0, line->given_count, settings);
    cli_check_needs(line);
}
