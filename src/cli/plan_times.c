/* Where the time of a plan's step goes, what other plans lose by, and what would help; as text and
 * as a picture with the pipeline's table. */
#include "cli/cli.h"
#include "report/markup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Parts ---------------------------------------------------------------------------------- */

const char *const cli_plan_part_names[CLI_PLAN_PARTS + 1] = {"compute",   "recompute", "bubble",
                                                             "imbalance", "exchange",  "update",
                                                             NULL};

static const char *const colours[CLI_PLAN_PARTS] = {"#7fb3e6", "#b8c4d0", "#d8d8d8",
                                                    "#e6a57f", "#d67fe6", "#8fce8f"};
static const char letters[] = "#r.-=+";

/* Seconds that are not printed as 0.0 ms. */
static const double least_shown = 0.05e-3;

/* Ranks that share the cores leave none idle while one of them works. */
void cli_plan_find_parts(const cli_plan_bar *plan, double parts[CLI_PLAN_PARTS])
{
    const sl_step_costs *costs = &plan->costs;
    double idle = plan->shares_cores ? 0 : costs->bubble,
           imbalance = plan->shares_cores ? 0 : costs->imbalance;
    parts[CLI_PLAN_COMPUTE] = costs->pipeline * (1 - idle - costs->recompute);
    parts[CLI_PLAN_RECOMPUTE] = costs->pipeline * costs->recompute;
    parts[CLI_PLAN_BUBBLE] = costs->pipeline * (idle - imbalance);
    parts[CLI_PLAN_IMBALANCE] = costs->pipeline * imbalance;
    parts[CLI_PLAN_EXCHANGE] = costs->exchange;
    parts[CLI_PLAN_UPDATE] = costs->update;
}

/* ---- Why others lose ------------------------------------------------------------------------ */

/* "bubble 1.2 ms, update 0.3 ms": in what the plan is longer than the best, the most first. */
static cli_change_text find_losses(const cli_plan_bar *best, const cli_plan_bar *plan)
{
    const double least = 0.05; /* of what it loses */
    cli_change_text out = {""};
    double parts[CLI_PLAN_PARTS], of_best[CLI_PLAN_PARTS],
        loss = plan->costs.seconds - best->costs.seconds;
    size_t used = 0;
    cli_plan_find_parts(plan, parts);
    cli_plan_find_parts(best, of_best);
    for (int n = 0; n < CLI_PLAN_PARTS; n++) {
        int most = 0;
        for (int i = 1; i < CLI_PLAN_PARTS; i++)
            if (parts[i] - of_best[i] > parts[most] - of_best[most])
                most = i;
        double more = parts[most] - of_best[most];
        if (more <= least * loss || more < least_shown)
            break;
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%s%s %.1f ms",
                                 used > 0 ? ", " : "", cli_plan_part_names[most], 1e3 * more);
        parts[most] = of_best[most];
    }
    return out;
}

/* ---- What would help ------------------------------------------------------------------------ */

/* Less is not said to help. */
static const double least_gain = 1.01;

static void insert_help(cli_plan_help helps[CLI_PLAN_HELPS], int *count, cli_plan_help help)
{
    int place = (*count)++;
    for (; place > 0 && helps[place - 1].gain < help.gain; place--)
        helps[place] = helps[place - 1];
    helps[place] = help;
}

/* Of twice the tokens a step, work and what stages lack in balance take twice as long, and the rest
 * as long as before. */
int cli_plan_helps(const cli_plan_bar *plan, const sl_plan_helps *planned,
                   cli_plan_help helps[CLI_PLAN_HELPS])
{
    static const char *const names[SL_PLAN_HELPS] = {[SL_HELP_LINKS] = "twice the links",
                                                     [SL_HELP_MEMORY] = "twice the memory",
                                                     [SL_HELP_FEWER] = "one pipeline rank less"};
    double parts[CLI_PLAN_PARTS], all = plan->costs.seconds;
    int count = 0;
    cli_plan_find_parts(plan, parts);
    double fixed = parts[CLI_PLAN_BUBBLE] + parts[CLI_PLAN_EXCHANGE] + parts[CLI_PLAN_UPDATE];
    const cli_plan_help of_parts[] = {{"twice the tokens a step", all / (all - fixed / 2), false},
                                      {"stages that are as long as each other",
                                       all / (all - parts[CLI_PLAN_IMBALANCE]), false}};
    for (int i = 0; i < SL_PLAN_HELPS; i++)
        if (planned->gain[i] > 0)
            insert_help(helps, &count,
                        (cli_plan_help){names[i], planned->gain[i],
                                        planned->is_lower_bound && i != SL_HELP_FEWER});
    for (size_t i = 0; i < sizeof of_parts / sizeof *of_parts; i++)
        if (of_parts[i].gain > least_gain)
            insert_help(helps, &count, of_parts[i]);
    return count;
}

/* ---- As text -------------------------------------------------------------------------------- */

enum { BAR = 60, MOST_COLUMNS = 160 };

static void print_bar(const cli_plan_bar *plan)
{
    double parts[CLI_PLAN_PARTS], before = 0;
    cli_plan_find_parts(plan, parts);
    printf("\nWhere the first one's step goes:\n  [");
    for (int i = 0; i < CLI_PLAN_PARTS; i++) {
        int from = (int)lround(BAR * before / plan->costs.seconds);
        before += parts[i];
        for (int k = from; k < (int)lround(BAR * before / plan->costs.seconds); k++)
            putchar(letters[i]);
    }
    printf("]\n ");
    for (int i = 0; i < CLI_PLAN_PARTS; i++)
        if (parts[i] >= least_shown)
            printf(" %c %s %.1f ms", letters[i], cli_plan_part_names[i], 1e3 * parts[i]);
    printf("\n");
}

static void print_losses(const cli_plan_bar *bars, int count)
{
    if (count > 1)
        printf("\nWhat the others take longer for:\n");
    for (int i = 1; i < count; i++) {
        double loss = bars[i].costs.seconds - bars[0].costs.seconds;
        const cli_change_text why = find_losses(&bars[0], &bars[i]);
        if (loss < 0) { /* of a cluster's plans */
            printf("  %s: %.1f ms less, but failures cost it more\n", bars[i].shape.text,
                   -1e3 * loss);
            continue;
        }
        printf("  %s: %.1f ms%s%s\n", bars[i].shape.text, 1e3 * loss, *why.text ? ": " : "",
               why.text);
    }
}

static void print_gains(const cli_plan_help *helps, int first, int end)
{
    for (int i = first; i < end; i++)
        printf("%s%s (%s%.2f times as fast)", i > first ? ", " : "", helps[i].name,
               helps[i].is_lower_bound ? "at least " : "", helps[i].gain);
    printf("\n");
}

static void print_helps(const cli_plan_bar *plan, const sl_plan_helps *planned)
{
    cli_plan_help helps[CLI_PLAN_HELPS];
    int count = cli_plan_helps(plan, planned, helps), helping = 0;
    while (helping < count && helps[helping].gain > least_gain)
        helping++;
    printf("\nWhat would help most: %s",
           helping > 0 ? "" : "none of the changes tried gains 1% or more");
    print_gains(helps, 0, helping);
    if (helping < count) {
        printf("What would not help: ");
        print_gains(helps, helping, count);
    }
    if (planned->is_lower_bound)
        printf(
            "There are too many layouts to search all of them again: with other links and memory, "
            "those with the replicas and pipeline ranks of the first plan were\n");
}

/* Lines that are too long are cut. */
static sl_status print_drawing(const sl_schedule *table)
{
    char *text;
    SL_TRY(sl_schedule_draw(table, &text));
    printf("\nIts pipeline, a row for each rank:\n");
    for (const char *line = text; *line;) {
        int length = (int)strcspn(line, "\n");
        printf("  %.*s%s\n", length < MOST_COLUMNS ? length : MOST_COLUMNS, line,
               length > MOST_COLUMNS ? " ..." : "");
        line += length + (line[length] == '\n');
    }
    free(text);
    return SL_OK;
}

sl_status cli_plan_print_times(const cli_plan_bar *bars, int count, const sl_plan_helps *helps,
                               const sl_schedule *table)
{
    print_losses(bars, count);
    print_bar(&bars[0]);
    print_helps(&bars[0], helps);
    return table && sl_schedule_ranks(table) > 1 ? print_drawing(table) : SL_OK;
}

/* ---- As a picture --------------------------------------------------------------------------- */

enum { WIDTH = 960, LEFT = 64, RIGHT = 8, ROW = 28, HEIGHT = 24, TOP = 36 };

/* A bar for each plan, to one scale, with what it goes to. The label lies on a light track, as it
 * may be longer than the bar. */
static void draw_bars(FILE *file, const cli_plan_bar *bars, int count)
{
    double longest = 0;
    for (int p = 0; p < count; p++)
        longest = fmax(longest, bars[p].costs.seconds);
    double scale = (WIDTH - LEFT - RIGHT) / longest;
    for (int i = 0; i < CLI_PLAN_PARTS; i++)
        fprintf(file,
                "<rect x=\"%d\" y=\"10\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"20\">%s</text>\n",
                LEFT + 110 * i, colours[i], LEFT + 110 * i + 16, cli_plan_part_names[i]);
    for (int p = 0; p < count; p++) {
        double parts[CLI_PLAN_PARTS], x = LEFT;
        int y = TOP + p * ROW;
        cli_plan_find_parts(&bars[p], parts);
        fprintf(file,
                "<text x=\"8\" y=\"%d\">plan %d</text>\n"
                "<rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                y + 16, p + 1, LEFT, y, WIDTH - LEFT - RIGHT, HEIGHT);
        for (int i = 0; i < CLI_PLAN_PARTS; i++) {
            fprintf(file,
                    "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s: "
                    "%.3g ms</title></rect>\n",
                    x, y, scale * parts[i], HEIGHT, colours[i], cli_plan_part_names[i],
                    1e3 * parts[i]);
            x += scale * parts[i];
        }
        fprintf(file, "<text class=\"bar\" x=\"%d\" y=\"%d\">", LEFT + 6, y + 16);
        sli_markup_text(file, bars[p].shape.text);
        fprintf(file, ": %.1f ms</text>\n", 1e3 * bars[p].costs.seconds);
    }
}

void cli_simulation_to_ms(const sl_schedule *table, sl_simulation *simulation)
{
    simulation->makespan *= 1e3;
    for (int rank = 0; rank < sl_schedule_ranks(table); rank++)
        simulation->idle[rank] *= 1e3;
    for (int i = 0; i < simulation->entry_count; i++) {
        simulation->entries[i].start *= 1e3;
        simulation->entries[i].end *= 1e3;
    }
}

/* `pipeline` is the picture of the first one's table, which becomes a part of this one; NULL: none.
 */
static sl_status draw_all(const cli_plan_bar *bars, int count, const char *pipeline, int ranks,
                          const char *which, char **text)
{
    size_t bytes;
    int below = TOP + count * ROW + 8, height = below + (pipeline ? (ranks + 1) * ROW + 32 : 0);
    FILE *file = open_memstream(text, &bytes);
    if (!file)
        return sl_error(SL_ERR_MEMORY, "no memory for a picture");
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<style>.paper{fill:#fff}.track{fill:#eef1f4}text{fill:#1f2328}"
            "@media (prefers-color-scheme:dark){.paper{fill:#0d1117}"
            "text:not(.bar){fill:#e6edf3}}</style>\n"
            "<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n",
            WIDTH, height, WIDTH, height);
    draw_bars(file, bars, count);
    if (pipeline)
        fprintf(file,
                "<text x=\"8\" y=\"%d\">The pipeline of plan 1%s, in milliseconds:</text>\n"
                "<g transform=\"translate(0 %d)\">%s</g>\n",
                below + 12, which, below + 20, pipeline);
    fputs("</svg>\n", file);
    return fclose(file) == 0 ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a picture");
}

sl_status cli_plan_draw(const cli_plan_bar *bars, int count, const sl_schedule *table,
                        const sl_simulation *simulation, const char *which, char **text)
{
    char *pipeline = NULL;
    *text = NULL;
    if (table)
        SL_TRY(sl_schedule_svg(table, simulation, &pipeline));
    int ranks = table ? sl_schedule_ranks(table) : 0;
    sl_status status = draw_all(bars, count, pipeline, ranks, which, text);
    free(pipeline);
    return status;
}
