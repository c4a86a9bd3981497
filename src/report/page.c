/* Runs as one HTML page that needs nothing else: tables, charts as inline SVG, and no script. It is
 * well-formed XML as well. */
#include "report/page.h"

#include "core/json.h"
#include "report/history_sources.h"
#include "report/markup.h"
#include "report/page_style.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLOURS = SLI_PAGE_COLOURS };

/* ---- Tables ------------------------------------------------------------------------------- */

/* A heading for the row, and one column a run. */
static void begin_table(const sli_page *page, const char *class, const char *corner)
{
    fprintf(page->file, "<div class=\"wide\"><table class=\"%s\"><thead><tr><th>%s</th>", class,
            corner);
    for (int r = 0; r < page->count; r++) {
        fprintf(page->file, "<th><i class=\"c%d\"></i>\u00a0", r % COLOURS);
        sli_markup_text(page->file, sli_page_short_name(page, page->runs[r]));
        fputs("</th>", page->file);
    }
    fputs("</tr></thead><tbody>\n", page->file);
}

static void end_table(const sli_page *page)
{
    fputs("</tbody></table></div>\n", page->file);
}

/* The last one of a split; NaN where there is none. */
static sli_history_eval last_eval(const sli_run_history *run, bool is_test)
{
    sli_history_eval found = {.loss = NAN, .perplexity = NAN};
    for (size_t i = 0; i < run->eval_count; i++)
        if (run->evals[i].is_test == is_test)
            found = run->evals[i];
    return found;
}

static double step_count(const sli_run_history *run)
{
    return run->step_count > 0 ? (double)run->steps[run->step_count - 1].step : NAN;
}

static double final_loss(const sli_run_history *run)
{
    double sum = 0;
    size_t last = run->step_count < 20 ? run->step_count : 20;
    for (size_t i = run->step_count - last; i < run->step_count; i++)
        sum += run->steps[i].values[SLI_STEP_LOSS];
    return last > 0 ? sum / (double)last : NAN;
}

static double last_valid(const sli_run_history *run)
{
    return last_eval(run, false).loss;
}

static double test_loss(const sli_run_history *run)
{
    return last_eval(run, true).loss;
}

static double test_perplexity(const sli_run_history *run)
{
    return last_eval(run, true).perplexity;
}

static double median_speed(const sli_run_history *run)
{
    return sli_history_median(run, SLI_STEP_TOKENS_PER_S);
}

/* Steps without a rate or a fraction count for none. */
static double sum_tokens(const sli_run_history *run, bool padding)
{
    double sum = 0;
    for (size_t i = 0; i < run->step_count; i++) {
        const double *values = run->steps[i].values;
        double tokens = 1e-3 * values[SLI_STEP_MS] * values[SLI_STEP_TOKENS_PER_S] *
                        (padding ? values[SLI_STEP_PADDING] : 1);
        sum += isfinite(tokens) ? tokens : 0;
    }
    return sum;
}

static double all_tokens(const sli_run_history *run)
{
    return sum_tokens(run, false);
}

static double padding_percent(const sli_run_history *run)
{
    return 100 * sum_tokens(run, true) / sum_tokens(run, false);
}

static double all_targets(const sli_run_history *run)
{
    double sum = 0;
    for (size_t i = 0; i < run->step_count; i++)
        sum += run->steps[i].values[SLI_STEP_TARGETS];
    return sum;
}

static double planned_ms(const sli_run_history *run)
{
    const json_t *planned = json_object_get(run->run, "planned_step_ms");
    return planned ? json_number_value(planned) : NAN;
}

static double median_ms(const sli_run_history *run)
{
    return sli_history_median(run, SLI_STEP_MS);
}

static double median_flops(const sli_run_history *run)
{
    return 1e-9 * sli_history_median(run, SLI_STEP_FLOPS_PER_S);
}

static double median_mfu(const sli_run_history *run)
{
    return 100 * sli_history_median(run, SLI_STEP_MFU);
}

/* In percent of the time of all steps. */
static double field_percent(const sli_run_history *run, sli_step_field field)
{
    double part = 0, all = 0;
    for (size_t i = 0; i < run->step_count; i++) {
        part += run->steps[i].values[field];
        all += run->steps[i].values[SLI_STEP_MS];
    }
    return all > 0 ? 100 * part / all : NAN;
}

static double data_percent(const sli_run_history *run)
{
    return field_percent(run, SLI_STEP_DATA_MS);
}

static double optimizer_percent(const sli_run_history *run)
{
    return field_percent(run, SLI_STEP_OPTIMIZER_MS);
}

static double reduce_percent(const sli_run_history *run)
{
    return field_percent(run, SLI_STEP_REDUCE_MS);
}

static double waiting_percent(const sli_run_history *run)
{
    return field_percent(run, SLI_STEP_WAITING_MS);
}

static double run_seconds(const sli_run_history *run)
{
    return run->ended ? run->seconds : NAN;
}

static double measured_bubble(const sli_run_history *run)
{
    const sli_history_pipeline *first = sli_history_first_pipeline(run);
    return first ? 100 * first->bubble_measured : NAN;
}

static double predicted_bubble(const sli_run_history *run)
{
    const sli_history_pipeline *first = sli_history_first_pipeline(run);
    return first ? 100 * first->bubble_predicted : NAN;
}

static double nonfinite_steps(const sli_run_history *run)
{
    double count = 0;
    for (size_t i = 0; i < run->step_count; i++)
        count += isnan(run->steps[i].values[SLI_STEP_LOSS]) ||
                 isnan(run->steps[i].values[SLI_STEP_GRAD_NORM]);
    return count;
}

static const struct {
    const char *name;
    double (*value)(const sli_run_history *run);
    bool bytes;
} results[] = {
    {"steps", step_count, false},
    {"train loss, last 20 steps", final_loss, false},
    {"best validation loss", sli_history_best_loss, false},
    {"last validation loss", last_valid, false},
    {"test loss", test_loss, false},
    {"test perplexity", test_perplexity, false},
    {"seconds, with evaluations", run_seconds, false},
    {"tokens trained, with padding", all_tokens, false},
    {"targets trained", all_targets, false},
    {"padding, % of the tokens", padding_percent, false},
    {"ms of a step, planned", planned_ms, false},
    {"ms of a step, median", median_ms, false},
    {"tokens/s, median", median_speed, false},
    {"GFLOP/s of the model, median", median_flops, false},
    {"mfu, median, %", median_mfu, false},
    {"peak memory of a device", sli_history_peak_bytes, true},
    {"bubble measured, %", measured_bubble, false},
    {"bubble predicted, %", predicted_bubble, false},
    {"time for data, %", data_percent, false},
    {"time for the optimizer, %", optimizer_percent, false},
    {"time waiting for replicas, %", reduce_percent, false},
    {"time waiting for other stages, %", waiting_percent, false},
    {"steps with a loss or norm that is not finite", nonfinite_steps, false},
};

/* A row that few runs have is left out where none has it. */
static bool is_shown(const sli_page *page, double (*value)(const sli_run_history *run))
{
    for (int r = 0; r < page->count; r++)
        if (value != planned_ms || isfinite(value(page->runs[r])))
            return true;
    return false;
}

static void write_figures(const sli_page *page)
{
    begin_table(page, "numbers", "result");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (!is_shown(page, results[i].value))
            continue;
        fprintf(page->file, "<tr><th>%s</th>", results[i].name);
        for (int r = 0; r < page->count; r++) {
            double value = results[i].value(page->runs[r]);
            fputs("<td>", page->file);
            if (results[i].bytes && isfinite(value))
                sli_markup_bytes(page->file, value);
            else
                sli_markup_number(page->file, value);
            fputs("</td>", page->file);
        }
        fputs("</tr>\n", page->file);
    }
    end_table(page);
}

/* When the run began, or resumed, and by which command. */
static void write_origin(const sli_page *page, const sli_run_history *run)
{
    char date[64] = "";
    const char *command = json_string_value(json_object_get(run->run, "command"));
    double seconds = json_number_value(json_object_get(run->run, "time"));
    time_t begun = seconds > 0 && seconds < 1e11 ? (time_t)seconds : 0;
    struct tm parts;
    if (begun > 0 && gmtime_r(&begun, &parts))
        strftime(date, sizeof date, " began on %Y-%m-%d at %H:%M:%S UTC", &parts);
    if (!*date && !command)
        return;
    fputs("<p>", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    fprintf(page->file, "%s%s", date, command ? ": <code>" : "");
    sli_markup_text(page->file, command ? command : "");
    fprintf(page->file, "%s</p>\n", command ? "</code>" : "");
}

/* What a reader of the results must know about a log. */
static void write_state(const sli_page *page, const sli_run_history *run)
{
    write_origin(page, run);
    if (!run->ended && !page->is_live) {
        fputs("<p>", page->file);
        sli_markup_text(page->file, sli_page_short_name(page, run));
        fputs(": the log has no end; the run goes on, was stopped, or failed.</p>\n", page->file);
    }
    if (run->missing + run->damaged == 0)
        return;
    fputs("<p>", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    fprintf(page->file,
            ": %" PRId64 " records could not be written, %" PRId64
            " lines were cut off or are too long.</p>\n",
            run->missing, run->damaged);
}

/* What the run has had of each source of its mixture. */
static void write_sources(const sli_page *page, const sli_run_history *run)
{
    if (run->source_count == 0)
        return;
    fputs("<div class=\"wide\"><table class=\"numbers\"><thead><tr><th>sources of ", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    fputs("</th><th>share, %</th><th>epochs</th><th>train loss, last 20 steps</th>"
          "<th>last validation loss</th></tr></thead><tbody>\n",
          page->file);
    for (size_t i = 0; i < run->source_count; i++) {
        const sli_history_source *source = &run->sources[i];
        const double values[] = {100 * source->share, source->epochs,
                                 sli_history_source_loss(run, source), source->valid_loss};
        fputs("<tr><th>", page->file);
        sli_markup_text(page->file, source->name);
        fputs("</th>", page->file);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            fputs("<td>", page->file);
            sli_markup_number(page->file, values[k]);
            fputs("</td>", page->file);
        }
        fputs("</tr>\n", page->file);
    }
    end_table(page);
}

/* A text of several lines. */
static void write_lines(FILE *file, const char *text)
{
    for (size_t length; *text; text += length) {
        length = strcspn(text, "\n");
        char *line = strndup(text, length);
        sli_markup_text(file, line ? line : "?");
        free(line);
        if (text[length] == '\n') {
            fputs("<br/>", file);
            length++;
        }
    }
}

/* What the model said, the newest first. */
static void write_samples(const sli_page *page, const sli_run_history *run)
{
    if (run->sample_count == 0)
        return;
    fputs("<div class=\"wide\"><table class=\"samples\"><thead><tr><th>step</th><th>", page->file);
    sli_markup_text(page->file, sli_page_short_name(page, run));
    fputs(" said</th></tr></thead><tbody>\n", page->file);
    for (size_t i = run->sample_count; i > 0; i--) {
        fprintf(page->file, "<tr><th>%" PRId64 "</th><td>", run->samples[i - 1].step);
        write_lines(page->file, run->samples[i - 1].text);
        fputs("</td></tr>\n", page->file);
    }
    end_table(page);
}

/* ---- Options ------------------------------------------------------------------------------ */

static json_t *option_value(const sli_run_history *run, const char *group, const char *key)
{
    json_t *options = group ? json_object_get(run->run, group) : run->run;
    return json_object_get(options, key);
}

static bool is_option(const char *key, const json_t *value)
{
    static const char *const others[] = {"record", "peak_flops_per_s", "process_bytes",
                                         "time",   "command",          "planned_step_ms"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(key, others[i]) == 0)
            return false;
    return !json_is_object(value);
}

static void write_option(const sli_page *page, const char *group, const char *key)
{
    bool same = true;
    json_t *first = option_value(page->runs[0], group, key);
    for (int r = 1; r < page->count; r++) {
        json_t *other = option_value(page->runs[r], group, key);
        same = same && (first == other || (first && other && json_equal(first, other)));
    }
    if (same && page->count > 1)
        return;
    fputs("<tr><th>", page->file);
    sli_markup_text(page->file, key);
    fputs("</th>", page->file);
    for (int r = 0; r < page->count; r++) {
        json_t *value = option_value(page->runs[r], group, key);
        char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6)) : NULL;
        fputs("<td>", page->file);
        sli_markup_text(page->file, json_is_string(value) ? json_string_value(value)
                                    : text                ? text
                                                          : "–");
        fputs("</td>", page->file);
        free(text);
    }
    fputs("</tr>\n", page->file);
}

/* Whether run `r` is the first that has this option. */
static bool is_first_with(const sli_page *page, int r, const char *group, const char *key)
{
    for (int earlier = 0; earlier < r; earlier++)
        if (option_value(page->runs[earlier], group, key))
            return false;
    return true;
}

static void write_options_of(const sli_page *page, const char *group)
{
    const char *key;
    json_t *value;
    for (int r = 0; r < page->count; r++) {
        json_t *options = group ? json_object_get(page->runs[r]->run, group) : page->runs[r]->run;
        json_object_foreach(options, key,
                            value) if (is_option(key, value) && is_first_with(page, r, group, key))
            write_option(page, group, key);
    }
}

void sli_page_write_options(const sli_page *page)
{
    fprintf(page->file, "<details%s><summary>%s</summary>\n",
            page->count > 1 ? " open=\"open\"" : "",
            page->count > 1 ? "Options that differ" : "Options");
    begin_table(page, "options", "option");
    write_options_of(page, NULL);
    write_options_of(page, "model");
    end_table(page);
    fputs("</details>\n", page->file);
}

/* ---- The page ----------------------------------------------------------------------------- */

void sli_page_write_head(FILE *file, const char *title, const char *policy)
{
    fputs("<!DOCTYPE html>\n"
          "<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<meta name=\"color-scheme\" content=\"light dark\"/>\n",
          file);
    if (policy)
        fprintf(file, "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\"/>\n", policy);
    fputs("<title>", file);
    sli_markup_text(file, title);
    fprintf(file, "</title>\n<style>\n%s</style></head><body>\n", page_style);
}

void sli_page_write_results(const sli_page *page)
{
    write_figures(page);
    for (int r = 0; r < page->count; r++)
        write_state(page, page->runs[r]);
    for (int r = 0; r < page->count; r++)
        write_sources(page, page->runs[r]);
    for (int r = 0; r < page->count; r++)
        write_samples(page, page->runs[r]);
}

static void write_page(const sli_page *page)
{
    char title[256];
    snprintf(title, sizeof title, "%s%s – sluice", sli_page_short_name(page, page->runs[0]),
             page->count > 1 ? " and others" : "");
    sli_page_write_head(page->file, title, "default-src 'none'; style-src 'unsafe-inline'");
    fprintf(page->file, "<h1>%s</h1>\n", page->count > 1 ? "Training runs" : "A training run");
    sli_page_write_results(page);
    sli_page_draw_pictures(page);
    sli_page_write_options(page);
    fprintf(page->file, "<footer>sluice %s</footer>\n</body></html>\n", sl_version());
}

void sli_report_html(const sli_run_history *const *runs, int count, FILE *file)
{
    sli_c_numbers scope = sli_c_numbers_begin();
    write_page(&(sli_page){.file = file, .runs = runs, .count = count});
    sli_c_numbers_end(scope);
}
