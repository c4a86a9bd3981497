/* A command's rows, and its command line. An option is "--name value", "--name=value", a beginning
 * of its name that no other option has, or a letter, "-n value" or "-nvalue". Options and other
 * words stand in any order. After "--" there are words only, and so there are after the first word
 * of another program's line. */
#include "cli/cli.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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

const sl_option *cli_find_row(const cli_command *command, const char *name, cli_near *near)
{
    const sl_option *row;
    for (int i = 0; (row = cli_row(command, i)); i++) {
        if (strcmp(row->name, name) == 0)
            return row;
        cli_near_add(near, row->name);
    }
    return NULL;
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* The only option whose name begins so, or NULL. */
static const sl_option *find_beginning(const cli_command *command, const char *name)
{
    char names[512] = "";
    const sl_option *row, *found = NULL;
    size_t used = 0, length = strlen(name);
    int count = 0;
    for (int i = 0; length > 0 && (row = cli_row(command, i)); i++) {
        if (strncmp(row->name, name, length) != 0)
            continue;
        found = row;
        count++;
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s--%s", used ? ", " : "",
                                     row->name);
    }
    if (count > 1)
        cli_refuse("--%s is ambiguous: %s", name, names);
    return found;
}

/* Ends the program where the word names no option. */
static const sl_option *find_option(const cli_command *command, const char *word)
{
    char name[64] = "";
    cli_near near = {.word = name};
    const sl_option *row;
    for (int i = 0; word[1] != '-' && (row = cli_row(command, i)); i++)
        if (row->letter && row->letter == word[1])
            return row;
    if (word[1] == '-')
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    row = cli_find_row(command, name, &near);
    if (!row)
        row = find_beginning(command, name);
    if (!row)
        cli_refuse_near(&near, "--", "there is no such option (see sluice %s --help), got \"%s\"",
                        command->name, word);
    return row;
}

/* Reads the option at argv[0]; gives the number of words that it takes. */
static int read_option(const cli_command *command, char **argv, cli_given *out)
{
    const char *word = argv[0], *equals = strchr(word, '=');
    const sl_option *row = find_option(command, word);
    const char *text = equals ? equals + 1 : NULL;
    if (word[1] != '-')
        text = word[2] ? word + 2 : NULL;
    bool is_next = row->value && !text;
    if (text && !row->value)
        cli_refuse("--%s takes no value, got \"%s\"", row->name, text);
    if (is_next && !argv[1])
        cli_refuse("--%s needs a value", row->name);
    *out = (cli_given){row, is_next ? argv[1] : text};
    return is_next ? 2 : 1;
}

void cli_line_read(const cli_command *command, char **argv, cli_line *out)
{
    size_t count = 0;
    bool words_only = false;
    while (argv[count])
        count++;
    *out = (cli_line){.command = command};
    out->given = cli_allocate(count + 1, sizeof *out->given);
    out->words = cli_allocate(count + 1, sizeof *out->words);
    while (*argv) {
        if (words_only || argv[0][0] != '-' || !argv[0][1]) {
            out->words[out->word_count++] = *argv++;
            words_only |= command->program;
        } else if (strcmp(*argv, "--") == 0) {
            words_only = true;
            argv++;
        } else if (strcmp(*argv, "--help") == 0) {
            cli_help_print(stdout, command);
            exit(cli_finish(SL_OK));
        } else {
            argv += read_option(command, argv, &out->given[out->given_count++]);
        }
    }
    if (out->word_count > 0 && !command->arguments)
        cli_refuse("%s takes options only, got \"%s\"", command->name, out->words[0]);
}

void cli_line_clear(cli_line *line)
{
    sl_schedule_destroy(&line->table);
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
    fprintf(to, "sluice %s", line->command->name);
    for (int i = line->config_count; i < line->given_count; i++) {
        const cli_given *given = &line->given[i];
        if (strcmp(given->option->name, omitted) == 0)
            continue;
        fprintf(to, " --%s%s", given->option->name, given->text ? " " : "");
        if (given->text)
            print_word(to, given->text);
    }
}
