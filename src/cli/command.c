#include "cli/cli.h"

#include <ctype.h>
#include <getopt.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_KEY = 0x100 }; /* for getopt, a row's key is this and its number */

/* ---- Rows --------------------------------------------------------------------------------- */

static bool takes_run_option(const cli_command *command, const char *name)
{
    const char *const *at = command->run_names;
    while (at && *at && strcmp(*at, name) != 0)
        at++;
    return !at || *at;
}

const sl_option *cli_row(const cli_command *command, int number)
{
    const sl_option *row;
    for (int t = 0; t < 2; t++)
        for (row = command->run_options[t]; row && row->name; row++)
            if (takes_run_option(command, row->name) && number-- == 0)
                return row;
    for (row = command->options; row && row->name; row++)
        if (number-- == 0)
            return row;
    return NULL;
}

int cli_row_count(const cli_command *command)
{
    int count = 0;
    while (cli_row(command, count))
        count++;
    return count;
}

const sl_option *cli_find_row(const cli_command *command, const char *name)
{
    const sl_option *row;
    for (int i = 0; (row = cli_row(command, i)); i++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

/* The row of getopt's key, which may be a letter; NULL: there is none. */
static const sl_option *find_key(const cli_command *command, int key)
{
    const sl_option *row;
    if (key >= FIRST_KEY)
        return cli_row(command, key - FIRST_KEY);
    for (int i = 0; (row = cli_row(command, i)); i++)
        if (row->letter && row->letter == key)
            return row;
    return NULL;
}

/* ---- Options that cannot be read ---------------------------------------------------------- */

/* Names all options that begin so: getopt knows what is meant where there is only one. */
static void refuse_ambiguous(const cli_command *command, const char *name)
{
    char names[512] = "";
    const sl_option *row;
    size_t used = 0;
    for (int i = 0; *name && (row = cli_row(command, i)) && used < sizeof names; i++)
        if (strncmp(row->name, name, strlen(name)) == 0)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s--%s", used ? ", " : "",
                                     row->name);
    if (used > 0)
        cli_refuse("--%s is ambiguous: %s", name, names);
}

static _Noreturn void refuse_unknown(const cli_command *command, const char *word)
{
    char name[64];
    cli_near near = {.word = name};
    const sl_option *row;
    const char *begin = strncmp(word, "--", 2) == 0 ? word + 2 : "";
    snprintf(name, sizeof name, "%.*s", (int)strcspn(begin, "="), begin);
    refuse_ambiguous(command, name);
    for (int i = 0; (row = cli_row(command, i)); i++)
        cli_near_add(&near, row->name);
    cli_refuse_near(&near, "--", "there is no such option (see sluice %s --help), got \"%s\"",
                    command->name, word);
}

/* For an option at which getopt stopped; it left the row's key, an unknown letter, or 0. `word` is
 * what it read last. */
static _Noreturn void refuse_option(const cli_command *command, int key, const char *word)
{
    const char letter[] = {'-', (char)key, '\0'}, *equals = strchr(word, '=');
    const sl_option *row = find_key(command, key);
    if (row && row->value)
        cli_refuse("--%s needs a value", row->name);
    if (row)
        cli_refuse("--%s takes no value, got \"%s\"", row->name, equals ? equals + 1 : "");
    if (key == 0 && strcmp(word, "--help") == 0) {
        cli_help_print(command);
        exit(cli_finish(SL_OK));
    }
    refuse_unknown(command, key == 0 ? word : letter);
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* getopt's long options, and its letters: where another program's line follows, it stops at the
 * first other word, else each one comes as the argument of the key 1. */
static struct option *make_options(const cli_command *command, char *letters)
{
    int count = cli_row_count(command);
    struct option *options = cli_allocate((size_t)count + 1, sizeof *options);
    letters += sprintf(letters, "%s", command->program ? "+:" : "-:");
    for (int i = 0; i < count; i++) {
        const sl_option *row = cli_row(command, i);
        options[i] = (struct option){row->name, row->value ? required_argument : no_argument, NULL,
                                     FIRST_KEY + i};
        if (row->letter)
            letters += sprintf(letters, "%c%s", row->letter, row->value ? ":" : "");
    }
    return options;
}

void cli_line_read(const cli_command *command, int argc, char **argv, cli_line *out)
{
    char *letters = cli_allocate(2 * (size_t)cli_row_count(command) + 3, 1);
    struct option *options = make_options(command, letters);
    int key;
    *out = (cli_line){.command = command, .argc = argc, .argv = argv};
    out->given = cli_allocate((size_t)argc + 1, sizeof *out->given);
    out->words = cli_allocate((size_t)argc + 1, sizeof *out->words);
    opterr = 0;
    while ((key = getopt_long(argc, argv, letters, options, NULL)) != -1 && key != '?' &&
           key != ':')
        if (key == 1)
            out->words[out->word_count++] = optarg;
        else
            out->given[out->given_count++] = (cli_given){find_key(command, key), optarg};
    free(options);
    free(letters);
    if (key != -1)
        refuse_option(command, optopt, argv[optind - 1]);
    while (optind < argc)
        out->words[out->word_count++] = argv[optind++];
    if (out->word_count > 0 && !command->arguments)
        cli_refuse("%s takes options only, got \"%s\"", command->name, out->words[0]);
}

void cli_line_clear(cli_line *line)
{
    json_decref(line->config);
    free(line->given);
    free(line->words);
}

const char *cli_given_value(const cli_given *given, int count, const char *name)
{
    while (count-- > 0)
        if (strcmp(given[count].option->name, name) == 0)
            return given[count].text ? given[count].text : "";
    return NULL;
}

const char *cli_line_value(const cli_line *line, const char *name)
{
    return cli_given_value(line->given, line->given_count, name);
}

/* ---- Printing ----------------------------------------------------------------------------- */

/* In quotes where a shell would change it. */
static void print_word(FILE *to, const char *word)
{
    const char *at = word, *quote = "";
    while (isalnum((unsigned char)*at) || (*at && strchr("_-./=:,+@%", *at)))
        at++;
    if (!*word || *at)
        quote = "'";
    fputs(quote, to);
    for (at = word; *at; at++)
        fprintf(to, *at == '\'' ? "'\\''" : "%c", *at);
    fputs(quote, to);
}

void cli_line_print(FILE *to, const cli_line *line, const char *omitted)
{
    size_t length = strlen(omitted);
    fputs(line->argv[0], to); /* the program and its command */
    for (int i = 1; i < line->argc; i++) {
        const char *word = line->argv[i];
        bool is_omitted = strncmp(word, omitted, length) == 0;
        if (is_omitted && word[length] == '\0')
            i++; /* its value is the next word */
        else if (!is_omitted || word[length] != '=') {
            fputc(' ', to);
            print_word(to, word);
        }
    }
}
