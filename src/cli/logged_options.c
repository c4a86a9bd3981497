/* The options of a run as its log tells them, for a command that goes on from them. */
#include "cli/cli.h"
#include "report/history.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* What a run's layout depends on is in the log, but for these, which are in other members. The text
 * is not read again: what it says of the model is in the log as well. */
static const char *const left_out[] = {"preset", "pp",         "devices",    "balance",
                                       "dp",     "data",       "tokenizer",  "splitter",
                                       "pack",   "shuffle",    "token-type", "mask-prompt",
                                       "force",  "max-batches"};

static bool is_left_out(const char *name)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(name, left_out[i]) == 0)
            return true;
    return false;
}

/* Its value in the record, or in the model's object; NULL: there is none. */
static json_t *find_value(const json_t *record, const sl_option *row)
{
    char key[64];
    snprintf(key, sizeof key, "%s", row->log_key ? row->log_key : row->name);
    for (char *letter = key; *letter; letter++)
        *letter = *letter == '-' ? '_' : *letter;
    json_t *value = json_object_get(row->in_model ? json_object_get(record, "model") : record, key);
    bool is_unset = row->optional && json_is_integer(value) && json_integer_value(value) == 0;
    return json_is_null(value) || is_unset ? NULL : value;
}

/* Whether the log has a number that nobody has asked for: another schedule has its own. */
static bool is_default(const json_t *record, const char *name)
{
    const char *schedule = json_string_value(json_object_get(record, "schedule"));
    json_int_t number = json_integer_value(json_object_get(record, name));
    if (strcmp(name, "virtual") == 0)
        return schedule && number == sl_schedule_virtual_stages(schedule);
    return (strcmp(name, "accumulate") == 0 || strcmp(name, "slices") == 0) && number == 1;
}

/* The command's own options are the line's: a log names no file that is written. */
static bool is_of_run(const cli_command *command, const sl_option *row)
{
    for (const sl_option *own = command->options; own && own->name; own++)
        if (own == row)
            return strcmp(row->name, "ntokens") == 0;
    return !is_left_out(row->name);
}

/* "5,1" */
static char *print_partition(const cli_logged_run *run)
{
    const json_t *partition = json_object_get(run->history->run, "partition");
    int balance[SL_MAX_STAGES];
    for (int s = 0; s < run->stages; s++)
        balance[s] = (int)json_integer_value(json_array_get(partition, (size_t)s));
    return cli_balance_text(balance, run->stages);
}

sl_status cli_logged_run_set(const cli_logged_run *run, cli_line *line, const char *path,
                             void *settings)
{
    const json_t *record = run->history->run;
    char *balance = print_partition(run);
    const sl_option *row;
    json_t *config = json_pack("{sO si ss}", "dp", json_object_get(record, "replicas"), "pp",
                               run->pipeline_ranks, "balance", balance);
    free(balance);
    for (int i = 0; (row = cli_row(line->command, i)); i++) {
        bool is_open = !is_of_run(line->command, row) || is_default(record, row->name);
        json_t *value = is_open ? NULL : find_value(record, row);
        if (value && !json_is_array(value) && !json_is_object(value))
            json_object_set(config, row->name, value);
    }
    return config ? cli_line_set_again(line, config, path, settings)
                  : sl_error(SL_ERR_MEMORY, "no memory for the options of a run");
}

int64_t cli_logged_run_tokens(const cli_logged_run *run)
{
    return json_integer_value(json_object_get(run->history->run, "ntokens"));
}
