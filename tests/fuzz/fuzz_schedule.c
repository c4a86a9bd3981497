/* Any bytes as a table in PyTorch's CSV: reading must end in one sentence or in a table; a table
 * must be refused in one sentence, or play to its end, and be read again as it is written. */
#include "fuzz/fuzz.h"

#include "parallel/schedule/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_written(const sl_schedule *schedule)
{
    char *text, *again;
    sl_schedule *read;
    demand(sl_schedule_csv(schedule, &text) == SL_OK, "written");
    demand(sli_schedule_parse("again", text, strlen(text), &read) == SL_OK, "read again");
    demand(sl_schedule_csv(read, &again) == SL_OK, "written again");
    demand(strcmp(text, again) == 0, "the same table");
    free(text);
    free(again);
    sl_schedule_destroy(&read);
}

static void check_played(const sl_schedule *schedule)
{
    int stages = sl_schedule_stages(schedule);
    double *costs = calloc((size_t)stages, sizeof *costs);
    sl_simulation simulation;
    demand(costs, "given memory");
    sl_cost_model model = {.forward = costs, .backward_input = costs, .backward_weight = costs};
    demand(sl_schedule_simulate(schedule, &model, &simulation) == SL_OK, "simulated");
    sl_simulation_clear(&simulation);
    free(costs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    sl_schedule *schedule;
    sl_status status = sli_schedule_parse("fuzz", (const char *)data, bytes, &schedule);
    demand((status == SL_OK) == (schedule != NULL), "NULL after an error");
    demand(status == SL_OK || status == SL_ERR_FORMAT || status == SL_ERR_INVALID, "refused");
    if (status == SL_OK && sl_schedule_validate(schedule) == SL_OK) {
        check_played(schedule);
        check_written(schedule);
    }
    sl_schedule_destroy(&schedule);
    return 0;
}
