/* The pictures of a report: curves, bars of memory, timelines of pipelines. */
#include "report/page.h"

#include "parallel/schedule/timeline.h"
#include "report/chart.h"
#include "report/markup.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLOURS = SLI_PAGE_COLOURS };

const char *sli_page_short_name(const sli_page *page, const sli_run_history *run)
{
    size_t common = 0;
    for (size_t i = 0; run->name[i]; i++) {
        for (int r = 0; r < page->count; r++)
            if (page->runs[r]->name[i] != run->name[i])
                return run->name + common;
        if (run->name[i] == '/')
            common = i + 1;
    }
    return run->name + common;
}

/* ---- Curves ------------------------------------------------------------------------------- */

/* The curves of one chart, of all runs. */
typedef struct curves {
    sli_curve *curves; /* [count], room for three a run; each owns its points */
    int count;
} curves;

typedef struct chart_kind {
    const char *title, *y_name;
    sli_step_field field;
    bool as_perplexity, has_validations, smoothed, log_scale, over_time;
} chart_kind;

static const chart_kind chart_kinds[] = {
    {"Loss", "nats per token; dots: validation", SLI_STEP_LOSS, false, true, true, true, false},
    {"Perplexity", "dots: validation", SLI_STEP_LOSS, true, true, true, true, false},
    {"Loss over time", "since the first step; dots: validation", SLI_STEP_LOSS, false, true, true,
     true, true},
    {"Gradient norm", "before clipping", SLI_STEP_GRAD_NORM, false, false, true, true, false},
    {"Learning rate", "", SLI_STEP_LR, false, false, false, false, false},
    {"Speed", "tokens/s", SLI_STEP_TOKENS_PER_S, false, false, true, false, false},
    {"Unusual steps",
     "How far a step's loss is from the mean of the 128 steps before it, in their standard "
     "deviations. Most steps are between −3 and 3; one far above is a spike.",
     SLI_STEP_LOSS_Z, false, false, false, false, false},
};

/* A run in a chart. */
typedef struct source {
    const chart_kind *kind;
    const sli_run_history *run;
    const char *name;
    int colour;
    double start, unit; /* seconds: of the first step, and on the x axis */
} source;

/* A curve with room for `most` points, without any; NULL: there is no memory for it. */
static sli_curve *add_curve(curves *all, const source *shown, const char *kind, size_t most)
{
    sli_curve *curve = &all->curves[all->count];
    *curve = (sli_curve){.label = shown->name,
                         .kind = kind,
                         .colour = shown->colour,
                         .points = calloc(most + 1, sizeof *curve->points)};
    all->count += curve->points != NULL;
    return curve->points ? curve : NULL;
}

/* A clock may be set back: x must not. */
static void add_point(sli_curve *curve, const source *shown, int64_t step, double time, double y)
{
    sli_point *points = (sli_point *)curve->points;
    double x = shown->kind->over_time ? (time - shown->start) / shown->unit : (double)step;
    if (!isfinite(x))
        return;
    points[curve->count] =
        (sli_point){curve->count > 0 ? fmax(x, points[curve->count - 1].x) : x, y};
    curve->count++;
}

static double field_value(const source *shown, const sli_history_step *step)
{
    double value = step->values[shown->kind->field];
    return shown->kind->as_perplexity ? exp(value) : value;
}

/* A mean that gives older steps less weight, over about a tenth of the run. It begins with the
 * first step's value. */
static void add_smoothed(curves *all, const source *shown)
{
    const sli_run_history *run = shown->run;
    const double weight = fmin(1, 20.0 / (double)(run->step_count + 1));
    double sum = 0, weights = 0;
    sli_curve *curve = add_curve(all, shown, "smoothed", run->step_count);
    for (size_t i = 0; curve && i < run->step_count; i++) {
        const sli_history_step *step = &run->steps[i];
        double value = step->values[shown->kind->field], mean = NAN;
        if (isfinite(value)) {
            sum = (1 - weight) * sum + weight * value;
            weights = (1 - weight) * weights + weight;
            mean = shown->kind->as_perplexity ? exp(sum / weights) : sum / weights;
        }
        add_point(curve, shown, step->step, step->values[SLI_STEP_TIME], mean);
    }
}

static void add_raw(curves *all, const source *shown)
{
    const sli_run_history *run = shown->run;
    sli_curve *curve = add_curve(all, shown, "", run->step_count);
    for (size_t i = 0; curve && i < run->step_count; i++)
        add_point(curve, shown, run->steps[i].step, run->steps[i].values[SLI_STEP_TIME],
                  field_value(shown, &run->steps[i]));
    if (curve)
        curve->faint = shown->kind->smoothed;
}

static void add_validations(curves *all, const source *shown)
{
    const sli_run_history *run = shown->run;
    sli_curve *curve = add_curve(all, shown, "validation", run->eval_count);
    for (size_t i = 0; curve && i < run->eval_count; i++) {
        const sli_history_eval *eval = &run->evals[i];
        if (!eval->is_test)
            add_point(curve, shown, eval->step, eval->time,
                      shown->kind->as_perplexity ? eval->perplexity : eval->loss);
    }
    if (curve)
        curve->dots = true;
}

/* Of the first step whose record says when it was written; NaN: there is none. */
static double start_time(const sli_run_history *run)
{
    for (size_t i = 0; i < run->step_count; i++)
        if (isfinite(run->steps[i].values[SLI_STEP_TIME]))
            return run->steps[i].values[SLI_STEP_TIME];
    return NAN;
}

/* In which the longest run takes at least three. */
static double time_unit(const sli_page *page, const char **name)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"s", 1}};
    double longest = 0;
    for (int r = 0; r < page->count; r++) {
        const sli_run_history *run = page->runs[r];
        if (run->step_count > 0)
            longest = fmax(longest,
                           run->steps[run->step_count - 1].values[SLI_STEP_TIME] - start_time(run));
    }
    int i = 0;
    while (i < 3 && !(longest >= 3 * units[i].seconds))
        i++;
    *name = units[i].name;
    return units[i].seconds;
}

static void draw_chart(const sli_page *page, const chart_kind *kind)
{
    const char *x_name = "step";
    double unit = kind->over_time ? time_unit(page, &x_name) : 0;
    curves all = {.curves = calloc(3 * (size_t)page->count, sizeof *all.curves)};
    for (int r = 0; all.curves && r < page->count; r++) {
        const source shown = {.kind = kind,
                              .run = page->runs[r],
                              .name = sli_page_short_name(page, page->runs[r]),
                              .colour = r % COLOURS,
                              .start = start_time(page->runs[r]),
                              .unit = unit};
        add_raw(&all, &shown);
        if (kind->smoothed)
            add_smoothed(&all, &shown);
        if (kind->has_validations)
            add_validations(&all, &shown);
    }
    sli_chart_draw(page->file, &(sli_chart){.title = kind->title,
                                            .y_name = kind->y_name,
                                            .x_name = x_name,
                                            .whole_x = !kind->over_time,
                                            .log_scale = kind->log_scale,
                                            .curves = all.curves,
                                            .curve_count = all.count});
    for (int i = 0; i < all.count; i++)
        free((sli_point *)all.curves[i].points);
    free(all.curves);
}

/* ---- Memory ------------------------------------------------------------------------------- */

enum { MOST_DEVICES = 64, MEMORY_ROW = 22, MEMORY_LEFT = 116, MEMORY_WIDTH = 420 };

static bool has_several_hosts(const sli_run_history *run)
{
    for (size_t i = 1; i < run->memory_count; i++)
        if (strcmp(run->memory[i].host, run->memory[0].host) != 0)
            return true;
    return false;
}

static void draw_device(const sli_page *page, const sli_history_memory *memory, int row,
                        double most, bool names_host)
{
    char name[48];
    snprintf(name, sizeof name, "%.8s%s%s", names_host ? memory->host : "", names_host ? " " : "",
             memory->device);
    double x = MEMORY_LEFT, scale = (MEMORY_WIDTH - MEMORY_LEFT - 80) / most;
    fprintf(page->file, "<text x=\"4\" y=\"%d\">%d.%d ", row * MEMORY_ROW + 15, memory->rank,
            memory->stage);
    sli_markup_text(page->file, name);
    fputs("<title>", page->file);
    sli_markup_text(page->file, memory->host);
    fputs("</title></text>\n", page->file);
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++) {
        double bytes = memory->peak_bytes[c];
        if (!(bytes > 0))
            continue;
        fprintf(page->file,
                "<rect class=\"c%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>%s: ",
                c, x, row * MEMORY_ROW + 3, bytes * scale, MEMORY_ROW - 6,
                sl_memory_category_name((sl_memory_category)c));
        sli_markup_bytes(page->file, bytes);
        fputs("</title></rect>", page->file);
        x += bytes * scale;
    }
    fprintf(page->file, "<text x=\"%.1f\" y=\"%d\">", x + 4, row * MEMORY_ROW + 15);
    sli_markup_bytes(page->file, memory->peak_total_bytes);
    fputs("</text>\n", page->file);
}

/* Peaks of categories come at different moments: together they may be more than the device's. */
static void draw_memory(const sli_page *page, const sli_run_history *run)
{
    int count = run->memory_count < MOST_DEVICES ? (int)run->memory_count : MOST_DEVICES;
    double most = 0;
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
            sum += fmax(0, run->memory[i].peak_bytes[c]);
        most = fmax(most, sum);
    }
    if (most <= 0 || !isfinite(most))
        return;
    fputs("<figure><figcaption>Peak memory <small>rank.stage and device of ", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    if (run->memory_count > MOST_DEVICES)
        fprintf(page->file, "; %d of %zu devices are shown", MOST_DEVICES, run->memory_count);
    fprintf(page->file, "</small></figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\">\n",
            MEMORY_WIDTH, count * MEMORY_ROW + 4);
    for (int i = 0; i < count; i++)
        draw_device(page, &run->memory[i], i, most, has_several_hosts(run));
    fputs("</svg>\n<p class=\"key\">", page->file);
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        fprintf(page->file, "<span><i class=\"c%d\"></i> %s</span> ", c,
                sl_memory_category_name((sl_memory_category)c));
    fputs("</p></figure>\n", page->file);
}

/* ---- The pipeline ------------------------------------------------------------------------- */

enum { MOST_PIPELINES = 64 }; /* of a run */
enum { TIMELINE_WIDTH = 960, TIMELINE_ROW = 26, TIMELINE_BAR = 22, TIMELINE_LEFT = 64 };

static double last_end(const sl_timeline_entry *entries, int count)
{
    double end = 0;
    for (int i = 0; i < count; i++)
        end = fmax(end, entries[i].end);
    return end;
}

/* One scale for both. */
static double timeline_end(const sli_history_pipeline *pipeline)
{
    return fmax(last_end(pipeline->measured, pipeline->action_count),
                last_end(pipeline->predicted, pipeline->action_count));
}

static void draw_timeline(const sli_page *page, const sli_history_pipeline *pipeline,
                          bool predicted)
{
    const sl_timeline_entry *entries = predicted ? pipeline->predicted : pipeline->measured;
    const sli_timeline timeline = {.entries = entries,
                                   .count = pipeline->action_count,
                                   .placement = pipeline->placement,
                                   .ranks = pipeline->ranks,
                                   .stages = pipeline->stages,
                                   .end = timeline_end(pipeline),
                                   .span = last_end(entries, pipeline->action_count),
                                   .factor = 1e3,
                                   .unit = " ms",
                                   .prefix = predicted ? "predicted: " : "measured: "};
    const sli_timeline_frame frame = {.left = TIMELINE_LEFT,
                                      .width = TIMELINE_WIDTH - TIMELINE_LEFT - 8,
                                      .top = 22,
                                      .row = TIMELINE_ROW,
                                      .bar = TIMELINE_BAR};
    int height = 26 + pipeline->ranks * TIMELINE_ROW;
    fprintf(page->file,
            "<svg class=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\">\n"
            "<text x=\"%d\" y=\"14\">%s: bubble %.1f%%</text>\n",
            predicted ? "predicted" : "measured", TIMELINE_WIDTH, height, TIMELINE_LEFT,
            predicted ? "Predicted" : "Measured",
            100 * (predicted ? pipeline->bubble_predicted : pipeline->bubble_measured));
    sli_timeline_draw(page->file, &timeline, &frame);
    fputs("</svg>\n", page->file);
}

static void draw_timelines(const sli_page *page, const sli_history_pipeline *pipeline)
{
    fputs("<div class=\"wide\"><div class=\"timelines\">\n", page->file);
    draw_timeline(page, pipeline, true);
    draw_timeline(page, pipeline, false);
    fputs("</div></div>\n<p class=\"key\">", page->file);
    for (int kind = 0; kind < SLI_ACTION_KINDS; kind++)
        fprintf(page->file, "<span><i style=\"background:%s\"></i> %c %s</span> ",
                sli_action_colour((sl_action_kind)kind), sli_action_letter((sl_action_kind)kind),
                sli_action_name((sl_action_kind)kind));
    fputs("<span><i class=\"bubble\"></i> bubble: the rank is idle</span></p>\n", page->file);
}

static void draw_pipeline(const sli_page *page, const sli_run_history *run,
                          const sli_history_pipeline *pipeline)
{
    fputs("<figure class=\"pipeline\"><figcaption>Pipeline <small>", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    if (run->pipeline_count > 1)
        fprintf(page->file, ", replica %d", pipeline->replica);
    fprintf(page->file, ", step %" PRId64 " of epoch %" PRId64, pipeline->step, pipeline->epoch);
    if (pipeline->action_count > 0)
        fprintf(page->file, "; %.4g ms", 1e3 * timeline_end(pipeline));
    fputs("</small></figcaption>\n", page->file);
    if (pipeline->action_count > 0)
        draw_timelines(page, pipeline);
    else
        fprintf(page->file,
                "<p>The log has no timeline of this step. It has none of a step with more than %d "
                "actions.</p>\n",
                SL_RUN_LOG_MOST_ACTIONS);
    fputs("</figure>\n", page->file);
}

static void draw_pipelines(const sli_page *page, const sli_run_history *run)
{
    for (size_t i = 0; i < run->pipeline_count && i < MOST_PIPELINES; i++)
        draw_pipeline(page, run, &run->pipelines[i]);
    if (run->pipeline_count <= MOST_PIPELINES)
        return;
    fputs("<p>", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    fprintf(page->file, ": the pipelines of %d of %zu replicas are shown.</p>\n", MOST_PIPELINES,
            run->pipeline_count);
}

/* ---- All of a page ------------------------------------------------------------------------ */

void sli_page_draw_pictures(const sli_page *page)
{
    fputs("<div class=\"charts\">\n", page->file);
    for (size_t i = 0; i < sizeof chart_kinds / sizeof *chart_kinds; i++)
        draw_chart(page, &chart_kinds[i]);
    for (int r = 0; r < page->count; r++)
        draw_memory(page, page->runs[r]);
    fputs("</div>\n", page->file);
    for (int r = 0; r < page->count; r++)
        draw_pipelines(page, page->runs[r]);
}
