/* Options as a file: one JSON object, whose members are options by name. */
#include "cli/arguments.h"
#include "cli/command.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 512, TEXT_BYTES = 40 };

/* ---- Reading ------------------------------------------------------------------------------ */

static _Noreturn void refuse(const char *path, const char *what)
{
    char sentence[SENTENCE_BYTES];
    snprintf(sentence, sizeof sentence, "%s: %s", path, what);
    cli_refuse(sentence, NULL);
}

static void *no_memory_if_null(void *memory)
{
    if (!memory)
        refuse("configuration", "no memory");
    return memory;
}

/* The text that the option takes for a member of the file, which keeps it: NULL where there is
 * none. */
static const char *text_of(json_t *config, const char *name, const json_t *value)
{
    char text[TEXT_BYTES];
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (!json_is_number(value))
        return NULL;
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    json_t *kept = no_memory_if_null(json_string(text));
    json_object_set_new(config, name, kept);
    return json_string_value(kept);
}

static cli_given_option find(const cli_command *command, const char *path, const char *name)
{
    char sentence[SENTENCE_BYTES];
    cli_near near = {.word = name};
    const cli_table *table;
    const sl_option *row;
    for (int i = 0; (row = cli_row(command, i, &table)); i++) {
        if (strcmp(row->name, name) == 0)
            return (cli_given_option){row, table->offset, NULL};
        cli_near_consider(&near, row->name);
    }
    snprintf(sentence, sizeof sentence, "%s: there is no such option", path);
    cli_refuse_near(sentence, name, &near, "");
}

void cli_add_config(cli_command_line *line, const char *path)
{
    char sentence[SENTENCE_BYTES];
    json_error_t error;
    json_t *config = json_load_file(path, JSON_REJECT_DUPLICATES, &error), *value;
    if (!json_is_object(config))
        refuse(path, config ? "must be a JSON object of options" : error.text);
    size_t members = json_object_size(config), count = 0;
    cli_given_option *all =
        no_memory_if_null(calloc(members + (size_t)line->given_count, sizeof *all));
    const char *name;
    json_object_foreach(config, name, value)
    {
        bool is_flag = json_is_boolean(value);
        all[count] = find(line->command, path, name);
        all[count].text = text_of(config, name, value);
        if (!all[count].text || (is_flag && all[count].option->value)) {
            snprintf(sentence, sizeof sentence, "%s: %s must be a %s", path, name,
                     all[count].option->value ? "number or a text" : "true or false");
            cli_refuse(sentence, NULL);
        }
        count++;
    }
    memcpy(all + count, line->given, (size_t)line->given_count * sizeof *all);
    free(line->given);
    line->given = all;
    line->given_count += (int)count;
    line->config_count = (int)count;
    line->config = config;
}

/* ---- Printing ----------------------------------------------------------------------------- */

/* JSON's readers hold whole numbers of up to 18 digits in any case. */
static bool is_number(sl_option_type type, const char *text)
{
    return type != SL_OPTION_CHOICE && type != SL_OPTION_TEXT && type != SL_OPTION_CUSTOM &&
           (type != SL_OPTION_SEED || strlen(text) <= 18);
}

static void print_text(FILE *to, const char *name, const char *text)
{
    char sentence[SENTENCE_BYTES];
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!quoted) {
        snprintf(sentence, sizeof sentence, "--%s is not UTF-8 and cannot be written as JSON",
                 name);
        cli_refuse(sentence, text);
    } else {
        fputs(quoted, to);
    }
    free(quoted);
    json_decref(value);
}

/* An option that has no sense without another, which is not set, is not shown: its file could not
 * be read back. */
static bool is_needless(const cli_command *command, const sl_option *row, const void *settings)
{
    const cli_table *table;
    const sl_option *at;
    char *text = NULL;
    for (int i = 0; row->needs && (at = cli_row(command, i, &table)); i++)
        if (strcmp(at->name, row->needs) == 0)
            (void)sl_option_text(at, (const char *)settings + table->offset, &text);
    bool needless = row->needs && !text;
    free(text);
    return needless;
}

/* Nothing is printed where a value cannot be. */
void cli_print_config(const cli_command *command, const void *settings)
{
    const char *separator = "{";
    const cli_table *table;
    const sl_option *row;
    char *all = NULL;
    size_t bytes = 0;
    FILE *to = no_memory_if_null(open_memstream(&all, &bytes));
    for (int i = 0; (row = cli_row(command, i, &table)); i++) {
        char *text;
        if (is_needless(command, row, settings) || strcmp(row->name, "config") == 0 ||
            strcmp(row->name, "print-config") == 0 ||
            sl_option_text(row, (const char *)settings + table->offset, &text) != SL_OK || !text)
            continue;
        fprintf(to, "%s\n  \"%s\": ", separator, row->name);
        if (is_number(row->type, text))
            fputs(text, to);
        else
            print_text(to, row->name, text);
        separator = ",";
        free(text);
    }
    fclose(to);
    printf("%s\n}\n", all);
    free(all);
}
