/* Tables of a run's ranks on the screen: a line for each pipeline rank of each replica. */
#include "cli/progress.h"

#include <stdio.h>

/* "0 (modules 0 to 2), 3 (modules 6 to 8)" */
void cli_write_stages(const sl_run_info *info, int pipeline_rank, char *text, size_t bytes)
{
    size_t used = 0;
    for (int s = 0; s < info->stage_count && used < bytes; s++) {
        const sl_stage_info *stage = &info->stages[s];
        if (stage->rank == pipeline_rank)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d (modules %d to %d)",
                                     used ? ", " : "", s, stage->first,
                                     stage->first + stage->count - 1);
    }
}

/* Prints the line of info->ranks[index], or for -1 the heading. */
typedef void print_row(const cli_display *view, const sl_run_info *info, int index);

/* A line for each pipeline rank of each replica; of very many the first, then how many more there
 * are, and `where` (may be ""). */
static void print_table(const cli_display *view, const sl_run_info *info, print_row *row,
                        const char *where)
{
    enum { MOST_ROWS = 64 };
    int count = info->rank_count;
    for (int i = -1; i < count && i < MOST_ROWS; i++)
        row(view, info, i);
    if (count > MOST_ROWS)
        cli_display_print(view, "and %d more%s", count - MOST_ROWS, where);
}

static void print_location(const cli_display *view, const sl_run_info *info, int index)
{
    if (index < 0) {
        cli_display_print(view, "%-5s %-16s %-10s %-12s %s", "rank", "host", "device", "cores",
                          "stages");
        return;
    }
    const sl_rank_stats *rank = &info->ranks[index];
    char cores[48], stages[256];
    snprintf(cores, sizeof cores, "%d (%s)", rank->threads, rank->isa);
    cli_write_stages(info, index % (info->rank_count / info->replicas), stages, sizeof stages);
    cli_display_print(view, "%-5d %-16s %-10s %-12s %s", rank->rank, rank->host, rank->device,
                      cores, stages);
}

void cli_print_locations(const cli_display *view, const sl_run_info *info)
{
    print_table(view, info, print_location, "");
}

/* Milliseconds of a step. */
static void print_rank_times(const cli_display *view, const sl_run_info *info, int index)
{
    enum { COLUMN = 11 };
    char columns[SL_TIME_KINDS * (COLUMN + 24) + 1];
    const sl_rank_stats *rank = index < 0 ? NULL : &info->ranks[index];
    int used = 0;
    for (int kind = 0; kind < SL_TIME_KINDS; kind++) {
        double ms = rank && rank->steps > 0 ? 1e3 * rank->seconds[kind] / (double)rank->steps : 0;
        used += snprintf(columns + used, sizeof columns - (size_t)used, " %*s", COLUMN,
                         rank ? cli_real_text(ms, 2).text : sl_time_kind_name((sl_time_kind)kind));
    }
    if (rank)
        cli_display_print(view, "%-5d %-5d%s", rank->rank, rank->stage, columns);
    else
        cli_display_print(view, "%-5s %-5s%s", "rank", "stage", columns);
}

static sl_status print_times(void *context, const sl_run_info *info)
{
    const cli_display *view = context;
    cli_display_print(view, "Time of a step in ms, by what it went to:");
    print_table(view, info, print_rank_times, "");
    if (info->slowest && info->rank_count > 1)
        cli_display_print(view, "Slowest of all: rank %d on %s, %s, from stage %d on",
                          info->slowest->rank, info->slowest->host, info->slowest->device,
                          info->slowest->stage);
    return SL_OK;
}

static void print_peaks(const cli_display *view, const sl_run_info *info, int index)
{
    enum { COLUMN = 13 };
    char columns[SL_MEMORY_CATEGORY_COUNT * (COLUMN + 16) + 1];
    const sl_rank_stats *rank = index < 0 ? NULL : &info->ranks[index];
    int used = 0;
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        used += snprintf(columns + used, sizeof columns - (size_t)used, " %12s",
                         rank ? cli_bytes_text((int64_t)rank->stats.peak_bytes[c]).text
                              : sl_memory_category_name(c));
    if (rank)
        cli_display_print(view, "%-5d %-5d %-10s %12s%s", rank->rank, rank->stage, rank->device,
                          cli_bytes_text((int64_t)rank->stats.peak_total_bytes).text, columns);
    else
        cli_display_print(view, "%-5s %-5s %-10s %12s%s", "rank", "stage", "device", "peak",
                          columns);
}

sl_status cli_print_ranks(void *context, const sl_run_info *info)
{
    cli_display_print(context, "Peak memory of each device, in all and by what it is for:");
    print_table(context, info, print_peaks, ": --log-json has all");
    return print_times(context, info);
}
