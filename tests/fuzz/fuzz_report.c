/* Any bytes as a run log: reading must end in one sentence or in a history, and a history in a page
 * that runs nothing and in a table. A log that grows, as sluice watch reads it, has the same
 * history at its end. */
#include "fuzz/fuzz.h"

#include "report/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t count_of(const char *text, const char *word)
{
    size_t count = 0;
    for (; (text = strstr(text, word)); text++)
        count++;
    return count;
}

static void check_page(const sli_run_history *const *runs)
{
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    demand(to != NULL, "given memory");
    sli_report_html(runs, 2, to);
    demand(fclose(to) == 0, "written");
    demand(strlen(text) == length, "without zeros");
    demand(!strstr(text, "<script") && !strstr(text, "nan\"") && !strstr(text, "inf\""),
           "harmless");
    demand(count_of(text, "<svg") == count_of(text, "</svg"), "whole");
    free(text);
}

static void check_table(const sli_run_history *const *runs)
{
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    demand(to != NULL, "given memory");
    sli_report_csv(runs, 2, to);
    demand(fclose(to) == 0, "written");
    demand(count_of(text, "\n") == 1 + 2 * (runs[0]->step_count + runs[0]->eval_count),
           "a line for each");
    free(text);
}

static char *draw_live_page(const sli_run_history *history)
{
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    demand(to != NULL, "given memory");
    const sli_page page = {.file = to, .runs = &history, .count = 1, .is_live = true};
    sli_page_write_live_content(&page, true, NULL);
    demand(fclose(to) == 0 && strlen(text) == length, "without zeros");
    demand(!strstr(text, "<script") && !strstr(text, "nan\"") && !strstr(text, "inf\""),
           "harmless");
    return text;
}

/* Adds the log in two steps, the second from the first one's last whole line on. */
static void check_growing(const sli_run_history *whole, const char *text, size_t bytes)
{
    sli_run_history *history;
    size_t first = bytes / 2, used, rest;
    demand(sli_run_history_create("<script>", &history) == SL_OK, "given memory");
    demand(sli_run_history_add(history, text, first, &used) == SL_OK, "read at first");
    demand(sli_run_history_add(history, text + used, bytes - used, &rest) == SL_OK, "read on");
    char *grown = draw_live_page(history), *read = draw_live_page(whole);
    demand(strcmp(grown, read) == 0, "the same");
    free(grown);
    free(read);
    sli_run_history_destroy(&history);
}

/* As of a log with this text. */
static sl_status read_text(const char *text, size_t bytes, sli_run_history **out)
{
    size_t used;
    SL_TRY(sli_run_history_create("<script>", out));
    sl_status status = sli_run_history_add(*out, text, bytes, &used);
    if (status == SL_OK)
        status = sli_run_history_check(*out);
    if (status != SL_OK)
        sli_run_history_destroy(out);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    sli_run_history *history;
    sl_status status = read_text((const char *)data, bytes, &history);
    demand((status == SL_OK) == (history != NULL), "NULL after an error");
    demand(status == SL_OK || status == SL_ERR_FORMAT, "refused");
    if (history) {
        const sli_run_history *const runs[] = {history, history};
        check_page(runs);
        check_table(runs);
        check_growing(history, (const char *)data, bytes);
    }
    sli_run_history_destroy(&history);
    return 0;
}
