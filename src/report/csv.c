/* Runs as one CSV table: a line for each step and each evaluation, for spreadsheets and plots. */
#include "core/json.h"
#include "report/markup.h"
#include "report/page.h"

#include <inttypes.h>
#include <math.h>

/* An empty field for NaN. */
static void print_number(FILE *to, double value)
{
    fputc(',', to);
    if (!isnan(value))
        fputs(sli_number_print(value, false).text, to);
}

static void print_step(FILE *to, const sli_run_history *run, const sli_history_step *step)
{
    sli_csv_text(to, run->name);
    fprintf(to, ",step,%" PRId64 ",%" PRId64, step->step, step->epoch);
    for (int field = 0; field < SLI_STEP_FIELDS; field++)
        print_number(to, step->values[field]);
    fputs(",\n", to);
}

static void print_eval(FILE *to, const sli_run_history *run, const sli_history_eval *eval)
{
    sli_csv_text(to, run->name);
    fprintf(to, ",%s,%" PRId64 ",%" PRId64, eval->is_test ? "test" : "valid", eval->step,
            eval->epoch);
    print_number(to, eval->loss);
    for (int field = 1; field < SLI_STEP_FIELDS; field++)
        print_number(to, field == SLI_STEP_MS     ? 1e3 * eval->seconds
                         : field == SLI_STEP_TIME ? eval->time
                                                  : NAN);
    print_number(to, eval->perplexity);
    fputs("\n", to);
}

/* Evaluations come after the last step before them. */
static void print_run(FILE *to, const sli_run_history *run)
{
    size_t eval = 0;
    for (size_t i = 0; i <= run->step_count; i++) {
        if (i > 0)
            print_step(to, run, &run->steps[i - 1]);
        int64_t done = i > 0 ? run->steps[i - 1].step : 0;
        while (eval < run->eval_count && (run->evals[eval].step <= done || i == run->step_count))
            print_eval(to, run, &run->evals[eval++]);
    }
}

void sli_report_csv(const sli_run_history *const *runs, int count, FILE *to)
{
    fputs("log,record,step,epoch", to);
    for (int field = 0; field < SLI_STEP_FIELDS; field++)
        fprintf(to, ",%s", sli_step_keys[field]);
    fputs(",ppl\n", to);
    for (int r = 0; r < count; r++)
        print_run(to, runs[r]);
}
