/* sluice report: pictures and tables from run logs. */
#include "cli/cli.h"
#include "report/page.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LOGS = 64 };

typedef struct settings {
    const char *output;
    bool csv;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "output", .letter = 'o', .value = "FILE", FIELD(TEXT, output),
     .help = "Write to FILE instead of standard output"},
    {.name = "csv", FIELD(FLAG, csv),
     .help = "Write a line of CSV for each step and evaluation instead of the page"},
    {0},
};
/* clang-format on */

static sl_status check_output(const char *output, const cli_line *line)
{
    for (int i = 0; i < line->word_count; i++)
        if (cli_is_same_file(output, line->words[i]))
            return sl_error(SL_ERR_INVALID, "--output: %s is an input and must not be overwritten",
                            output);
    return output ? sl_error_context(sl_train_check_output(&(sl_train_options){0}, output),
                                     "--output: ")
                  : SL_OK;
}

static void print_report(const settings *parsed, const sli_run_history *const *runs, int count,
                         FILE *file)
{
    if (parsed->csv)
        sli_report_csv(runs, count, file);
    else
        sli_report_html(runs, count, file);
}

/* Whether standard output was written is found at the end. */
static sl_status write_report(const settings *parsed, const sli_run_history *const *runs, int count)
{
    char *text = NULL;
    size_t bytes;
    if (!parsed->output) {
        print_report(parsed, runs, count, stdout);
        return SL_OK;
    }
    FILE *memory = open_memstream(&text, &bytes);
    if (memory)
        print_report(parsed, runs, count, memory);
    bool is_whole = memory && ferror(memory) == 0;
    if (memory && fclose(memory) != 0)
        is_whole = false;
    sl_status status = is_whole ? sl_train_write_output(parsed->output, text)
                                : sl_error(SL_ERR_MEMORY, "no memory for the report");
    free(text);
    return status;
}

static sl_status run_report(cli_line *line, void *settings_read)
{
    sli_run_history *runs[MOST_LOGS] = {NULL};
    int count = line->word_count;
    const settings *parsed = settings_read;
    if (count < 1 || count > MOST_LOGS)
        cli_refuse("report needs 1 to %d run logs, got %d", MOST_LOGS, count);
    sl_status status;
    SL_TRY_OR_FAIL(check_output(parsed->output, line));
    for (int i = 0; i < count; i++)
        SL_TRY_OR_FAIL(sli_run_history_read(line->words[i], &runs[i]));
    SL_TRY_OR_FAIL(write_report(parsed, (const sli_run_history *const *)runs, count));
fail:
    for (int i = 0; i < count; i++)
        sli_run_history_destroy(&runs[i]);
    return status;
}

const cli_command cmd_report = {
    .name = "report",
    .summary = "show run logs as a page of curves and timelines",
    .arguments = "LOG.jsonl...",
    .doc = "Writes an HTML page about runs from their logs (train --log-json): loss, perplexity, "
           "gradient norm, learning rate, speed, memory, and the pipeline's timeline as predicted "
           "and as measured. Several logs are laid over each other, with a table of the options in "
           "which they differ. The page is one file without scripts.",
    .examples = "sluice report before.jsonl after.jsonl -o report.html\n",
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_report,
};
