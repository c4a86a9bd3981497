/* A table as a picture, and its figures as JSON. */
#include "core/error.h"
#include "core/timeline.h"
#include "parallel/schedule/table.h"

#include "core/number.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 960, ROW = 28, BAR = 24, LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 24 };

static void draw_picture(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    int height = TOP + schedule->ranks * ROW + BOTTOM;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, height, WIDTH, height);
    sli_timeline_draw(to,
                      &(sli_timeline){.entries = simulation->entries,
                                      .count = simulation->entry_count,
                                      .placement = schedule->placement,
                                      .ranks = schedule->ranks,
                                      .stages = schedule->stages,
                                      .end = simulation->makespan,
                                      .factor = 1,
                                      .unit = "",
                                      .prefix = ""},
                      &(sli_timeline_frame){.left = LEFT,
                                            .width = WIDTH - LEFT - RIGHT,
                                            .top = TOP,
                                            .row = ROW,
                                            .bar = BAR});
    fprintf(to,
            "<text x=\"%d\" y=\"%d\">%d stages, %d micro-batches: makespan %g, %.1f%% idle</text>\n"
            "</svg>\n",
            LEFT, height - 8, schedule->stages, schedule->micros, simulation->makespan,
            100 * simulation->bubble);
}

static void print_json(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    fprintf(to,
            "{\"ranks\":%d,\"stages\":%d,\"micros\":%d,\"makespan\":%.17g,\"bubble\":%.17g,"
            "\"bubble_span\":%.17g,\"idle\":[",
            schedule->ranks, schedule->stages, schedule->micros, simulation->makespan,
            simulation->bubble, simulation->bubble_span);
    for (int rank = 0; rank < schedule->ranks; rank++)
        fprintf(to, "%s%.17g", rank ? "," : "", simulation->idle[rank]);
    fputs("],\"peak_held\":[", to);
    for (int rank = 0; rank < schedule->ranks; rank++)
        fprintf(to, "%s%d", rank ? "," : "", simulation->peak_held[rank]);
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
    return sl_error(SL_ERR_MEMORY, "schedule: no memory for the text of %d actions",
                    simulation->entry_count);
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
