/* Any bytes as a run log: reading must end in one sentence or in a history, and a history in a page
 * that runs nothing and in a table. */
#include "report/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_report: not %s; the last error: %s\n", what, sl_error_text());
    abort();
}

static size_t count_of(const char *text, const char *word)
{
    size_t count = 0;
    for (; (text = strstr(text, word)); text++)
        count++;
    return count;
}

static void check_page(const sl_run_history *const *runs)
{
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    demand(to != NULL, "given memory");
    demand(sl_report_html(runs, 2, to) == SL_OK && fclose(to) == 0, "written");
    demand(strlen(text) == length, "without zeros");
    demand(!strstr(text, "<script") && !strstr(text, "nan\"") && !strstr(text, "inf\""),
           "harmless");
    demand(count_of(text, "<svg") == count_of(text, "</svg"), "whole");
    free(text);
}

static void check_table(const sl_run_history *const *runs)
{
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    demand(to != NULL, "given memory");
    demand(sl_report_csv(runs, 2, to) == SL_OK && fclose(to) == 0, "written");
    demand(count_of(text, "\n") == 1 + 2 * (runs[0]->step_count + runs[0]->eval_count),
           "a line for each");
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    sl_run_history *history;
    sl_status status = sli_run_history_parse("<script>", (const char *)data, bytes, &history);
    demand((status == SL_OK) == (history != NULL), "NULL after an error");
    demand(status == SL_OK || status == SL_ERR_FORMAT, "refused");
    if (history) {
        const sl_run_history *const runs[] = {history, history};
        check_page(runs);
        check_table(runs);
    }
    sl_run_history_destroy(&history);
    return 0;
}
