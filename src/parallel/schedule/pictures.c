/* A table as a picture, and its figures as JSON. */
#include "core/error.h"
#include "parallel/schedule/table.h"

#include "core/number.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 960, ROW = 28, BAR = 24, LEFT = 64, TOP = 8, BOTTOM = 24, LABEL_WIDTH = 7 };

/* Colours of F, R, B, I, W; those of later stages of a rank are darker. */
static const char *const colours[] = {"#7fb3e6", "#b8c4d0", "#8fce8f", "#8fd6c4", "#f2c078"};

/* Which of its rank's stages is this? */
static int round_of(const sl_schedule *schedule, int stage)
{
    return stage / schedule->ranks;
}

static void draw_bar(FILE *to, const sl_schedule *schedule, sl_timeline_entry entry, double scale)
{
    int rank = schedule->placement[entry.action.stage];
    double x = LEFT + entry.start * scale, width = (entry.end - entry.start) * scale;
    int y = TOP + rank * ROW;
    int virtual_stages = schedule->stages / schedule->ranks;
    double opacity = 1 - 0.5 * round_of(schedule, entry.action.stage) / virtual_stages;
    fprintf(to,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
            "fill-opacity=\"%.2f\" stroke=\"#555\" stroke-width=\"0.5\"/>\n",
            x, y, width, BAR, colours[entry.action.kind], opacity);
    char text[SLI_ACTION_TEXT_BYTES];
    int length = snprintf(text, sizeof text, "%c%d", sli_action_letter(entry.action.kind),
                          entry.action.micro);
    if (width > LABEL_WIDTH * length)
        fprintf(to, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x + width / 2,
                y + 16, text);
}

static void draw_bars(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    double scale = simulation->makespan > 0 ? (WIDTH - LEFT - 8) / simulation->makespan : 0;
    for (int i = 0; i < simulation->entry_count; i++)
        draw_bar(to, schedule, simulation->entries[i], scale);
}

static void draw_frame(FILE *to, const sl_schedule *schedule, const sl_simulation *simulation)
{
    int height = TOP + schedule->ranks * ROW + BOTTOM;
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            WIDTH, height, WIDTH, height);
    for (int rank = 0; rank < schedule->ranks; rank++)
        fprintf(to, "<text x=\"8\" y=\"%d\">rank %d</text>\n", TOP + rank * ROW + 16, rank);
    draw_bars(to, schedule, simulation);
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
    return print_to_text(draw_frame, schedule, simulation, text);
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
