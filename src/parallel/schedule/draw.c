/* Tables as text and as pictures, and their figures as JSON. */
#include "parallel/schedule/play.h"

#include "core/error.h"
#include "core/json.h"
#include "parallel/schedule/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "2F0", "(0F7;7B3)"; `end`: of the cell that begins with action `first`. */
static int print_cell(const sl_schedule *schedule, size_t first, size_t end, char *to, size_t room)
{
    char text[SLI_ACTION_TEXT_BYTES], other[SLI_ACTION_TEXT_BYTES];
    sli_action_text(schedule->actions[first], text);
    if (end == first + 1)
        return snprintf(to, room, "%s", text);
    return snprintf(to, room, "(%s;%s)", text,
                    sli_action_text(schedule->actions[first + 1], other));
}

typedef struct drawing {
    const sl_schedule *schedule;
    const sli_play *play;
    const sli_window *window;
    size_t width; /* of a column, with the blank after it */
    char *text;   /* NULL while widths are measured */
} drawing;

/* Where the cell begins in the row's line; the widest cell decides about `width`. */
static void visit_cell(drawing *d, int rank, size_t first, size_t end)
{
    const sli_window *window = d->window;
    size_t clock = (size_t)d->play->starts[first];
    char label[2 * SLI_ACTION_TEXT_BYTES];
    if (clock < window->first_clock || clock >= window->end_clock)
        return;
    size_t length = (size_t)print_cell(d->schedule, first, end, label, sizeof label);
    if (!d->text) {
        d->width = length + 1 > d->width ? length + 1 : d->width;
        return;
    }
    size_t columns = window->end_clock - window->first_clock;
    size_t line = (size_t)(rank - window->first_rank) * columns * d->width;
    char *at = d->text + line + (clock - window->first_clock) * d->width;
    memset(at, ' ', d->width - 1);
    memcpy(at, label, length);
}

static void visit_cells(drawing *d)
{
    const sl_schedule *schedule = d->schedule;
    for (int rank = d->window->first_rank; rank < d->window->end_rank; rank++) {
        size_t first = sli_schedule_row(schedule, rank), stop = first + d->play->done[rank];
        while (first < stop) {
            size_t end = first + 1;
            while (end < stop && schedule->actions[end].joined)
                end++;
            visit_cell(d, rank, first, end);
            first = end;
        }
    }
}

sl_status sli_draw_play(const sl_schedule *schedule, const sli_play *play, const sli_window *window,
                        char **text)
{
    drawing d = {.schedule = schedule, .play = play, .window = window, .width = 4};
    size_t rows = (size_t)(window->end_rank - window->first_rank);
    size_t columns = window->end_clock - window->first_clock;
    visit_cells(&d);
    *text = NULL;
    char *made = malloc(rows * columns * d.width + 1);
    if (!made)
        return sli_no_memory("schedule", "a drawing of %zu columns", columns);
    memset(made, '.', rows * columns * d.width);
    made[rows * columns * d.width] = '\0';
    for (size_t i = 1; i <= rows * columns; i++)
        made[i * d.width - 1] = i % columns == 0 ? '\n' : ' ';
    d.text = made;
    visit_cells(&d);
    *text = made;
    return SL_OK;
}

sl_status sl_schedule_draw(const sl_schedule *schedule, char **text)
{
    SLI_CHECK_NOT_NULL(text);
    *text = NULL;
    SLI_CHECK_NOT_NULL(schedule);
    SL_TRY(sli_schedule_check_cells(schedule));
    sli_play play;
    SL_TRY(sli_schedule_play(schedule, &(sli_play_costs){.clocks = true}, &play));
    sli_window window = {0, schedule->ranks, 0, (size_t)play.makespan};
    sl_status status = sli_draw_play(schedule, &play, &window, text);
    sli_play_clear(&play);
    return status;
}

/* ---- Pictures, and figures as JSON ---------------------------------------------------- */

enum { WIDTH = 960, ROW = 28, BAR = 24, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 24 };

static void draw_picture(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    int height = TOP + schedule->ranks * ROW + BOTTOM;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<style>.paper{fill:#fff}text{fill:#1f2328}@media (prefers-color-scheme:dark)"
            "{.paper{fill:#0d1117}text:not(.bar){fill:#e6edf3}}</style>\n"
            "<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n",
            WIDTH, height, WIDTH, height);
    sli_timeline_draw(to,
                      &(sli_timeline){.entries = simulation->entries,
                                      .count = simulation->entry_count,
                                      .placement = schedule->placement,
                                      .ranks = schedule->ranks,
                                      .stages = schedule->stages,
                                      .end = simulation->makespan,
                                      .span = simulation->makespan,
                                      .factor = 1,
                                      .unit = "",
                                      .prefix = ""},
                      &(sli_timeline_frame){.left = LEFT,
                                            .width = WIDTH - LEFT - RIGHT,
                                            .top = TOP,
                                            .row = ROW,
                                            .bar = BAR});
    fprintf(to, "<text x=\"%d\" y=\"%d\">%d stages, %d micro-batches", LEFT, height - 8,
            schedule->stages, sl_schedule_micros(schedule));
    if (schedule->slices > 1)
        fprintf(to, " of %d slices", schedule->slices);
    fprintf(to, ": makespan %g, %.1f%% idle</text>\n</svg>\n", simulation->makespan,
            100 * simulation->bubble);
}

static void print_entries(FILE *to, const sl_simulation *simulation)
{
    char action[SLI_ACTION_TEXT_BYTES];
    for (int i = 0; i < simulation->entry_count; i++) {
        const sl_timeline_entry *entry = &simulation->entries[i];
        fprintf(to, "%s[\"%s\",%.17g,%.17g]", i ? "," : "", sli_action_text(entry->action, action),
                entry->start, entry->end);
    }
}

static void print_json(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    fprintf(to,
            "{\"ranks\":%d,\"stages\":%d,\"micros\":%d,\"slices\":%d,\"makespan\":%.17g,"
            "\"bubble\":%.17g,\"bubble_span\":%.17g,\"idle\":[",
            schedule->ranks, schedule->stages, sl_schedule_micros(schedule), schedule->slices,
            simulation->makespan, simulation->bubble, simulation->bubble_span);
    for (int rank = 0; rank < schedule->ranks; rank++)
        fprintf(to, "%s%.17g", rank ? "," : "", simulation->idle[rank]);
    fputs("],\"peak_held\":[", to);
    for (int rank = 0; rank < schedule->ranks; rank++)
        fprintf(to, "%s%d", rank ? "," : "", simulation->peak_held[rank]);
    fputs("],\"placement\":[", to);
    for (int stage = 0; stage < schedule->stages; stage++)
        fprintf(to, "%s%d", stage ? "," : "", schedule->placement[stage]);
    fputs("],\"actions\":[", to);
    print_entries(to, simulation);
    fputs("]}\n", to);
}

static sl_status
print_to_text(void (*write)(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation),
              const sl_schedule *schedule, const sl_simulation *simulation, char **text)
{
    size_t bytes;
    *text = NULL;
    FILE *to = open_memstream(text, &bytes);
    if (to) {
        sli_c_numbers scope = sli_c_numbers_begin();
        write(to, schedule, simulation);
        sli_c_numbers_end(scope);
        if (fclose(to) == 0)
            return SL_OK;
    }
    free(*text);
    *text = NULL;
    return sli_no_memory("schedule", "the text of %d actions", simulation->entry_count);
}

sl_status sl_schedule_svg(const sl_schedule *schedule, const sl_simulation *simulation, char **text)
{
    SLI_CHECK_NOT_NULL(text);
    *text = NULL;
    SLI_CHECK_NOT_NULL(schedule);
    SLI_CHECK_NOT_NULL(simulation);
    return print_to_text(draw_picture, schedule, simulation, text);
}

sl_status sl_schedule_json(const sl_schedule *schedule, const sl_simulation *simulation,
                           char **text)
{
    SLI_CHECK_NOT_NULL(text);
    *text = NULL;
    SLI_CHECK_NOT_NULL(schedule);
    SLI_CHECK_NOT_NULL(simulation);
    return print_to_text(print_json, schedule, simulation, text);
}
