/* Runs as one CSV table: a line for each step and each evaluation, for spreadsheets and plots. */
#include "core/json.h"
#include "report/markup.h"
#include "report/page.h"

#include <inttypes.h>
#include <math.h>

/* An empty field for NaN. */
static void print_number(FILE *file, double value)
{
    fputc(',', file);
    if (!isnan(value))
        fputs(sli_number_print(value, false).text, file);
}

static void print_step(FILE *file, const sli_run_history *run, const sli_history_step *step)
{
    sli_csv_text(file, run->name);
    fprintf(file, ",step,%" PRId64 ",%" PRId64, step->step, step->epoch);
    for (int field = 0; field < SLI_STEP_FIELDS; field++)
        print_number(file, step->values[field]);
    fputs(",\n", file);
}

static void print_eval(FILE *file, const sli_run_history *run, const sli_history_eval *eval)
{
    sli_csv_text(file, run->name);
    fprintf(file, ",%s,%" PRId64 ",%" PRId64, eval->is_test ? "test" : "valid", eval->step,
            eval->epoch);
    print_number(file, eval->loss);
    for (int field = 1; field < SLI_STEP_FIELDS; field++)
        print_number(file, field == SLI_STEP_MS     ? 1e3 * eval->seconds
                           : field == SLI_STEP_TIME ? eval->time
                                                    : NAN);
    print_number(file, eval->perplexity);
    fputs("\n", file);
}

/* Evaluations come after the last step before them. */
static void print_run(FILE *file, const sli_run_history *run)
{
    size_t eval = 0;
    for (size_t i = 0; i <= run->step_count; i++) {
        if (i > 0)
            print_step(file, run, &run->steps[i - 1]);
        int64_t done = i > 0 ? run->steps[i - 1].step : 0;
        while (eval < run->eval_count && (run->evals[eval].step <= done || i == run->step_count))
            print_eval(file, run, &run->evals[eval++]);
    }
}

void sli_report_csv(const sli_run_history *const *runs, int count, FILE *file)
{
    fputs("log,record,step,epoch", file);
    for (int field = 0; field < SLI_STEP_FIELDS; field++)
        fprintf(file, ",%s", sli_step_keys[field]);
    fputs(",ppl\n", file);
    for (int r = 0; r < count; r++)
        print_run(file, runs[r]);
}
