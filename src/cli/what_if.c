/* sluice plan --cluster --what-if: the best plan for each of many changes of a cluster, as a table,
 * as CSV and as a chart. */
#include "cli/cli.h"
#include "report/chart.h"
#include "report/markup.h"
#include "sluice/app/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is changed ------------------------------------------------------------------------ */

enum { LINKS, NODES, FAILURES, AXES, MOST_VALUES = 64, MOST_POINTS = 64, MOST_CURVES = 8 };

static const char *const axis_names[AXES] = {"links", "nodes", "failures"};
static const char *const axis_titles[AXES] = {"links (times as fast)", "nodes",
                                              "failures (times as many)"};

/* A list of values. */
typedef struct axis {
    int kind, count;
    double values[MOST_VALUES]; /* [count] ascending */
} axis;

/* All points: of each combination of the other lists, one for each value of the first. */
typedef struct grid {
    axis axes[AXES];
    int axis_count;
} grid;

static int count_curves(const grid *all)
{
    int curves = 1;
    for (int i = 1; i < all->axis_count; i++)
        curves *= all->axes[i].count;
    return curves;
}

static int count_points(const grid *all)
{
    return count_curves(all) * all->axes[0].count;
}

/* The value that a curve has of one of the other lists. */
static double value_of_curve(const grid *all, int curve, int list)
{
    for (int i = 1; i < list; i++)
        curve /= all->axes[i].count;
    return all->axes[list].values[curve % all->axes[list].count];
}

static sl_cluster_change change_of(const grid *all, int point)
{
    sl_cluster_change change = {0};
    for (int i = 0; i < all->axis_count; i++) {
        int count = all->axes[0].count;
        double value =
            i == 0 ? all->axes[0].values[point % count] : value_of_curve(all, point / count, i);
        if (all->axes[i].kind == NODES)
            change.nodes = (int)value;
        else
            *(all->axes[i].kind == LINKS ? &change.links : &change.failures) = value;
    }
    return change;
}

bool cli_is_what_if(const char *text)
{
    return strchr(text, '=') != NULL;
}

static sl_status find_axis(grid *all, const char *name)
{
    int kind = 0;
    while (kind < AXES && strcmp(axis_names[kind], name) != 0)
        kind++;
    if (kind == AXES)
        return sl_error(SL_ERR_INVALID,
                        "--what-if must be lists of links, nodes or failures, got \"%s\"", name);
    for (int i = 0; i < all->axis_count; i++)
        if (all->axes[i].kind == kind)
            return sl_error(SL_ERR_INVALID, "--what-if has a list of %s twice", name);
    all->axes[all->axis_count++] = (axis){.kind = kind};
    return SL_OK;
}

static sl_status add_value(axis *list, const char *text)
{
    const double least = 1e-6, most = 1e6;
    const sl_option row = {.name = "what-if", .type = SL_OPTION_DOUBLE, .highest = most};
    const char *name = axis_names[list->kind];
    bool is_count = list->kind == NODES;
    double value;
    if (sl_option_set(&row, &value, text) != SL_OK || value < least ||
        (is_count && value != floor(value)))
        return sl_error(SL_ERR_INVALID, "--what-if %s must be %snumbers from %g to %g, got \"%s\"",
                        name, is_count ? "whole " : "", is_count ? 1 : least, most, text);
    if (list->count == MOST_VALUES)
        return sl_error(SL_ERR_INVALID, "--what-if %s has more than %d numbers", name, MOST_VALUES);
    if (list->count > 0 && value <= list->values[list->count - 1])
        return sl_error(SL_ERR_INVALID, "--what-if %s must ascend, got %g after %g", name, value,
                        list->values[list->count - 1]);
    list->values[list->count++] = value;
    return SL_OK;
}

/* "links=1,2,nodes=64,128" */
static sl_status parse_grid(char *text, grid *out)
{
    *out = (grid){0};
    for (char *item = text, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        char *equals = strchr(item, '=');
        if (equals) {
            *equals = '\0';
            SL_TRY(find_axis(out, item));
            item = equals + 1;
        }
        if (out->axis_count == 0)
            return sl_error(SL_ERR_INVALID,
                            "--what-if must be links=, nodes= or failures= and "
                            "numbers with commas between, got \"%s\"",
                            item);
        SL_TRY(add_value(&out->axes[out->axis_count - 1], item));
    }
    if (count_points(out) > MOST_POINTS || count_curves(out) > MOST_CURVES)
        return sl_error(SL_ERR_INVALID,
                        "--what-if can have at most %d points, and %d for each value of its first "
                        "list, got %d and %d",
                        MOST_POINTS, MOST_CURVES, count_points(out), count_curves(out));
    return SL_OK;
}

/* ---- Plans ---------------------------------------------------------------------------------- */

typedef struct point {
    sl_cluster_change change;
    int nodes;              /* of the cluster; 0: they are not known */
    sl_cluster_plans found; /* without plans: why, in `error` */
    char error[512];
} point;

/* "links=2 nodes=64": what is changed. */
static void name_point(const sl_cluster_change *change, char *text, size_t bytes)
{
    const double values[AXES] = {
        [LINKS] = change->links, [NODES] = change->nodes, [FAILURES] = change->failures};
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < AXES && used < bytes; i++)
        if (values[i] > 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s=%g", used > 0 ? " " : "",
                                     axis_names[i], values[i]);
}

static void keep_error(point *failed)
{
    snprintf(failed->error, sizeof failed->error, "%s", sl_error_text());
    failed->nodes = failed->found.nodes > 0 ? failed->found.nodes : failed->change.nodes;
    sl_cluster_plans_clear(&failed->found);
}

/* What does not fit at one point may at others: the command fails where no point has a plan. */
static sl_status plan_points(const sl_plan_search_options *options, const char *cluster,
                             const grid *all, point *points)
{
    sl_status first = SL_OK;
    int planned = 0;
    for (int i = 0; i < count_points(all); i++) {
        sl_plan_search_options search = *options;
        search.change = points[i].change = change_of(all, i);
        search.best_only = true;
        sl_status status = sl_plan_search_cluster(&search, cluster, &points[i].found);
        points[i].nodes = points[i].found.nodes;
        planned += status == SL_OK;
        if (status != SL_OK && status != SL_ERR_MEMORY && status != SL_ERR_INVALID)
            return status;
        if (status != SL_OK) {
            keep_error(&points[i]);
            first = first == SL_OK ? status : first;
        }
    }
    if (planned > 0)
        return SL_OK;
    char name[96];
    name_point(&points[0].change, name, sizeof name);
    return sl_error(first, "--what-if %s: %s: %s", name, cluster, points[0].error);
}

/* ---- The table ------------------------------------------------------------------------------ */

static void print_change(const sl_cluster_change *change)
{
    printf("%8.4g %8.4g ", change->links > 0 ? change->links : 1,
           change->failures > 0 ? change->failures : 1);
}

static void print_point(const point *shown, double tokens)
{
    print_change(&shown->change);
    if (shown->found.count == 0) {
        printf("%6d  %s\n", shown->nodes, shown->error);
        return;
    }
    const sl_cluster_plan *plan = &shown->found.plans[0];
    printf("%6d  %-48s %10.1f %5.1f%% %5.1f%% %12.4g", shown->nodes,
           cli_cluster_plan_shape(plan).text, 1e3 * plan->costs.seconds, 100 * plan->mfu,
           100 * (1 - plan->failures.kept_fraction), cli_tokens_a_day(plan));
    if (tokens > 0 && isinf(plan->failures.run_s))
        printf(" %10s", "never");
    else if (tokens > 0)
        printf(" %10.4g", plan->failures.run_s / SL_DAY_SECONDS);
    printf("\n");
}

static void print_points(const grid *all, const point *points, double tokens)
{
    printf("%8s %8s %6s  %-48s %10s %6s %6s %12s%s\n", "links", "failures", "nodes",
           "replicas x pipeline ranks", "step ms", "MFU", "lost", "tokens/day",
           tokens > 0 ? "       days" : "");
    for (int i = 0; i < count_points(all); i++)
        print_point(&points[i], tokens);
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static void write_number(FILE *file, double value)
{
    fputc(',', file);
    if (isfinite(value))
        fprintf(file, "%.9g", value);
}

static void write_row(FILE *file, const point *written, double tokens)
{
    const sl_cluster_change *change = &written->change;
    const sl_cluster_plan *plan = &written->found.plans[0];
    const sl_failure_plan *failures = &plan->failures;
    bool has_plan = written->found.count > 0;
    fprintf(file, "%.9g,%.9g,%d,", change->links > 0 ? change->links : 1,
            change->failures > 0 ? change->failures : 1, written->nodes);
    if (has_plan)
        sli_csv_text(file, cli_cluster_plan_shape(plan).text);
    const double numbers[] = {1e3 * plan->costs.seconds,
                              plan->tokens_per_s,
                              plan->mfu,
                              (double)plan->memory_bytes,
                              plan->costs.bubble,
                              1e3 * plan->costs.exchange,
                              plan->nodes_used,
                              failures->kept_fraction,
                              cli_tokens_a_day(plan),
                              failures->run_s / SL_DAY_SECONDS,
                              failures->low_s / SL_DAY_SECONDS,
                              failures->high_s / SL_DAY_SECONDS};
    enum { NUMBERS = sizeof numbers / sizeof *numbers, DAYS = 3 };
    for (int i = 0; i < NUMBERS; i++)
        write_number(file, has_plan && (tokens > 0 || i < NUMBERS - DAYS) ? numbers[i] : NAN);
    fputc(',', file);
    sli_csv_text(file, written->error);
    fputc('\n', file);
}

static sl_status make_csv(const grid *all, const point *points, double tokens, char **text)
{
    size_t bytes;
    FILE *file = open_memstream(text, &bytes);
    if (!file)
        return sl_error(SL_ERR_MEMORY, "no memory for a table");
    fputs("links,failures,nodes,plan,step_ms,tokens_per_s,mfu,memory_bytes,bubble,exchange_ms,"
          "nodes_used,kept_fraction,tokens_per_day,days,days_low,days_high,error\n",
          file);
    for (int i = 0; i < count_points(all); i++)
        write_row(file, &points[i], tokens);
    return fclose(file) == 0 ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a table");
}

/* ---- The chart ------------------------------------------------------------------------------ */

/* "nodes 64, failures 2": what the curve has of the other lists. */
static void name_curve(const grid *all, int curve, char *text, size_t bytes)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 1; i < all->axis_count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %g", i > 1 ? ", " : "",
                                 axis_names[all->axes[i].kind], value_of_curve(all, curve, i));
}

static sl_status make_chart(const grid *all, const point *points, char **text)
{
    enum { NAME = 64 };
    int curves = count_curves(all), count = all->axes[0].count;
    char names[MOST_CURVES][NAME];
    sli_curve drawn[MOST_CURVES];
    sli_point places[MOST_POINTS];
    size_t bytes;
    for (int c = 0; c < curves; c++) {
        name_curve(all, c, names[c], NAME);
        drawn[c] = (sli_curve){.label = names[c],
                               .kind = "",
                               .colour = c,
                               .dots = true,
                               .points = &places[c * count],
                               .count = (size_t)count};
    }
    for (int i = 0; i < curves * count; i++)
        places[i] =
            (sli_point){all->axes[0].values[i % count],
                        points[i].found.count > 0 ? cli_tokens_a_day(&points[i].found.plans[0])
                                                  : NAN};
    FILE *file = open_memstream(text, &bytes);
    if (!file)
        return sl_error(SL_ERR_MEMORY, "no memory for a chart");
    sli_chart_write(file, &(sli_chart){.title = "Tokens a day",
                                       .y_name = "of the best plan, with failures",
                                       .x_name = axis_titles[all->axes[0].kind],
                                       .whole_x = all->axes[0].kind == NODES,
                                       .curves = drawn,
                                       .curve_count = curves});
    return fclose(file) == 0 ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a chart");
}

/* ---- The command ---------------------------------------------------------------------------- */

static sl_status write_points(const cli_cluster_settings *asked, const grid *all,
                              const point *points)
{
    char *svg = NULL, *csv = NULL;
    sl_status status = SL_OK;
    if (asked->svg) {
        SL_TRY_OR_FAIL(make_chart(all, points, &svg));
        SL_TRY_OR_FAIL(sl_train_write_output(asked->svg, svg));
    }
    if (asked->csv) {
        SL_TRY_OR_FAIL(make_csv(all, points, asked->tokens, &csv));
        SL_TRY_OR_FAIL(sl_train_write_output(asked->csv, csv));
    }
fail:
    free(csv);
    free(svg);
    return status;
}

sl_status cli_plan_what_if(const sl_plan_search_options *options, const cli_cluster_settings *asked)
{
    grid all;
    char *lists = cli_allocate(strlen(asked->what_if) + 1, 1);
    memcpy(lists, asked->what_if, strlen(asked->what_if) + 1);
    sl_status status = parse_grid(lists, &all);
    free(lists);
    SL_TRY(status);
    point *points = cli_allocate((size_t)count_points(&all), sizeof *points);
    SL_TRY_OR_FAIL(plan_points(options, asked->cluster, &all, points));
    SL_TRY_OR_FAIL(write_points(asked, &all, points));
    print_points(&all, points, asked->tokens);
fail:
    for (int i = 0; i < count_points(&all); i++)
        sl_cluster_plans_clear(&points[i].found);
    free(points);
    return status;
}
