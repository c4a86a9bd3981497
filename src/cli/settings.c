/* Options from a file and from the command line, and printed as such a file: one JSON object, whose
 * members are options by name. */
#include "cli/cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- The file ----------------------------------------------------------------------------- */

/* The option's text for a member, which `config` keeps; NULL: it is neither number nor text. */
static const char *read_value(json_t *config, const char *name, const json_t *value)
{
    char text[40];
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    else
        return NULL;
    json_object_set_new(config, name, json_string(text));
    return json_string_value(json_object_get(config, name));
}

static cli_given read_member(const cli_line *line, const char *path, const char *name,
                             const json_t *value)
{
    cli_near near = {.word = name};
    const sl_option *option = cli_find_row(line->command, name, &near);
    if (!option)
        cli_refuse_near(&near, "", "%s: there is no such option, got \"%s\"", path, name);
    bool is_flag = json_is_boolean(value);
    const char *text = read_value(line->config, name, value); /* may replace `value` */
    if (!text || (is_flag && option->value))
        cli_refuse("%s: %s must be a %s", path, name,
                   option->value ? "number or a text" : "true or false");
    return (cli_given){option, text};
}

/* Puts the file's options before those of the line, which so override them. */
static void read_file(cli_line *line, const char *path)
{
    json_error_t error;
    json_t *value;
    void *next;
    const char *name;
    line->config = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(line->config))
        cli_refuse("%s: %s", path, line->config ? "must be a JSON object of options" : error.text);
    cli_given *all =
        cli_allocate(json_object_size(line->config) + (size_t)line->given_count + 1, sizeof *all);
    json_object_foreach_safe(line->config, next, name, value) all[line->config_count++] =
        read_member(line, path, name, value);
    memcpy(all + line->config_count, line->given, (size_t)line->given_count * sizeof *all);
    free(line->given);
    line->given = all;
    line->given_count += line->config_count;
}

/* ---- Setting ------------------------------------------------------------------------------ */

static void set_option(const cli_given *given, void *settings)
{
    const sl_option *option = given->option;
    cli_near near = {.word = given->text};
    if (sl_option_set(option, settings, given->text) == SL_OK)
        return;
    for (int i = 0; option->choices && option->choices[i]; i++)
        cli_near_add(&near, option->choices[i]);
    cli_refuse_near(&near, "", "--%s", sl_error_text());
}

/* A run's options from the file or from the line. Devices and a balance of numbers say how many
 * stages there are, as --pp does, and devices in groups how many replicas, as --dp does: numbers of
 * a preset or of the file then do not count. */
static void set_run_source(const cli_given *source, int count, sl_train_options *to)
{
    const char *preset = cli_given_value(source, count, "preset"),
               *devices = cli_given_value(source, count, "devices");
    if (preset) /* an unknown one is refused with the other options */
        (void)sl_train_options_preset(preset, to);
    int stages = to->pipeline_ranks, replicas = to->replicas;
    to->pipeline_ranks = to->replicas = 0;
    for (int i = 0; i < count; i++)
        set_option(&source[i], to);
    bool balance =
        cli_given_value(source, count, "balance") && to->balance_kind == SL_BALANCE_EXPLICIT;
    if (to->pipeline_ranks == 0 && !devices && !balance)
        to->pipeline_ranks = stages;
    if (to->replicas == 0 && !(devices && strchr(devices, ';')))
        to->replicas = replicas;
}

static void check_needs(const cli_line *line)
{
    for (int i = 0; i < line->given_count; i++) {
        const sl_option *option = line->given[i].option;
        if (!option->needs || cli_line_value(line, option->needs))
            continue;
        cli_near near = {.word = option->needs};
        const sl_option *needed = cli_find_row(line->command, option->needs, &near);
        cli_refuse("--%s needs --%s%s%s", option->name, needed->name, needed->value ? " " : "",
                   needed->value ? needed->value : "");
    }
}

void cli_settings_default(const cli_command *command, void *settings)
{
    const sl_option *row;
    memset(settings, 0, command->settings_bytes);
    if (command->run_options[0])
        sl_train_options_default(settings);
    for (int i = 0; (row = cli_row(command, i)); i++)
        if (row->initial)
            set_option(&(cli_given){row, row->initial}, settings);
}

static sl_status read_table(cli_line *line, sl_train_options *options)
{
    const char *schedule = sl_train_options_schedule(options);
    if (sl_schedule_has_name(schedule))
        return SL_OK;
    bool chunks_given = cli_line_value(line, "chunks"), ranks_given = cli_line_value(line, "pp");
    sl_schedule_options wanted = {.ranks = ranks_given ? options->pipeline_ranks : 0,
                                  .virtual_stages = options->virtual_stages,
                                  .micros = chunks_given ? options->chunks : 0};
    SL_TRY(sl_schedule_open(schedule, &wanted, &line->table));
    options->table = line->table;
    options->pipeline_ranks = sl_schedule_ranks(line->table);
    options->chunks = sl_schedule_micros(line->table);
    return SL_OK;
}

sl_status cli_settings_read(cli_line *line, void *settings)
{
    const char *path = cli_line_value(line, "config");
    bool is_run = line->command->run_options[0] != NULL;
    if (path)
        read_file(line, path);
    cli_settings_default(line->command, settings);
    const cli_given *own = line->given + line->config_count;
    int count = line->given_count - line->config_count;
    for (int i = 0; !is_run && i < count; i++)
        set_option(&own[i], settings);
    if (is_run) {
        set_run_source(line->given, line->config_count, settings);
        set_run_source(own, count, settings);
    }
    check_needs(line);
    return is_run ? read_table(line, settings) : SL_OK;
}

/* ---- Printing ----------------------------------------------------------------------------- */

/* Numbers and flags print as JSON's own; a seed may have more digits than JSON's readers hold. */
static bool is_json(sl_option_type type, const char *text)
{
    return type != SL_OPTION_CHOICE && type != SL_OPTION_TEXT && type != SL_OPTION_CUSTOM &&
           type != SL_OPTION_PAIR && (type != SL_OPTION_SEED || strlen(text) <= 18);
}

static void print_member(FILE *to, const sl_option *row, const char *text)
{
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (!quoted)
        cli_refuse("--%s is not UTF-8 and cannot be written as JSON, got \"%s\"", row->name, text);
    fprintf(to, "%s\n  \"%s\": %s", ftell(to) > 0 ? "," : "{", row->name,
            is_json(row->type, text) ? text : quoted);
    free(quoted);
    json_decref(value);
}

/* The value's text, to be freed; NULL: it is not set, or its file could not be read back, since it
 * needs an option that is not set. */
static char *read_text(const cli_command *command, const sl_option *row, const void *settings)
{
    char *text = NULL, *needed = NULL;
    cli_near near = {.word = row->needs};
    const sl_option *needs = row->needs ? cli_find_row(command, row->needs, &near) : NULL;
    if (needs)
        (void)sl_option_text(needs, settings, &needed);
    if (!needs || needed)
        (void)sl_option_text(row, settings, &text);
    free(needed);
    return text;
}

/* Nothing is printed where a value cannot be. */
void cli_settings_print(const cli_command *command, const void *settings)
{
    const sl_option *row;
    char *all = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&all, &bytes);
    for (int i = 0; to && (row = cli_row(command, i)); i++) {
        char *text = read_text(command, row, settings);
        if (text && strcmp(row->name, "config") != 0 && strcmp(row->name, "print-config") != 0)
            print_member(to, row, text);
        free(text);
    }
    if (!to || fclose(to) != 0)
        cli_refuse("no memory for the configuration");
    printf("%s\n}\n", all);
    free(all);
}
