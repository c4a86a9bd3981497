#include "parallel/schedule_play.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char letter(sl_action_kind kind)
{
    switch (kind) {
    case SL_ACTION_FORWARD:
        return 'F';
    case SL_ACTION_FORWARD_DISCARD:
        return 'f';
    case SL_ACTION_RECOMPUTE:
        return 'R';
    case SL_ACTION_BACKWARD:
        break;
    }
    return 'B';
}

/* Cells of a letter and a number of as many digits as the highest micro-batch has, and a blank
 * between cells. */
static sl_status draw_play(const sl_schedule *schedule, const sli_play *play, char **text)
{
    int digits = snprintf(NULL, 0, "%d", schedule->micros - 1);
    size_t cell = (size_t)digits + 2, columns = (size_t)play->makespan;
    size_t row = columns ? columns * cell : 1; /* the last blank is the line's end */
    char *drawing = malloc((size_t)schedule->stages * row + 1);
    if (!drawing)
        return sl_error(SL_ERR_MEMORY, "sl_schedule_draw: no memory for %zu columns", columns);
    memset(drawing, '.', (size_t)schedule->stages * row);
    drawing[(size_t)schedule->stages * row] = '\0';
    for (size_t stage = 0; stage < (size_t)schedule->stages; stage++) {
        for (size_t column = 1; column < columns; column++)
            drawing[stage * row + column * cell - 1] = ' ';
        drawing[(stage + 1) * row - 1] = '\n';
    }
    for (int i = 0; i < play->count; i++) {
        sl_timeline_entry entry = play->entries[i];
        char *at = drawing + (size_t)entry.stage * row + (size_t)entry.start * cell;
        char label[16];
        snprintf(label, sizeof label, "%c%0*d", letter(entry.action.kind), digits,
                 entry.action.micro);
        memcpy(at, label, cell - 1);
    }
    *text = drawing;
    return SL_OK;
}

sl_status sl_schedule_draw(const sl_schedule *schedule, char **text)
{
    *text = NULL;
    sli_play_costs unit_costs = {0};
    sli_play play;
    SL_TRY(sli_schedule_play(schedule, &unit_costs, &play));
    sl_status status = draw_play(schedule, &play, text);
    sli_play_clear(&play);
    return status;
}
