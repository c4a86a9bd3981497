#include "cli/memory_table.h"

#include "cli/arguments.h"

#include <stdio.h>

enum { MOST_DEVICES = 64, LINE_BYTES = 256 };

static void print_title(void (*print)(void *context, const char *line), void *context)
{
    char line[LINE_BYTES];
    int used =
        snprintf(line, sizeof line, "%-5s %-5s %-10s %12s", "rank", "stage", "device", "peak");
    for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
        used += snprintf(line + used, sizeof line - (size_t)used, " %12s",
                         sl_memory_category_name((sl_memory_category)c));
    print(context, "Peak memory of each device, in all and by what it is for:");
    print(context, line);
}

void cli_memory_table(const sl_run_info *info, void (*print)(void *context, const char *line),
                      void *context)
{
    char line[LINE_BYTES], text[CLI_NUMBER_BYTES];
    int count = info->replicas * sl_pipe_stages(info->pipe);
    print_title(print, context);
    for (int i = 0; i < count && i < MOST_DEVICES; i++) {
        const sl_stage_memory *memory = &info->memory[i];
        int used =
            snprintf(line, sizeof line, "%-5d %-5d %-10s %12s", memory->rank, memory->stage,
                     memory->device, cli_bytes_text((int64_t)memory->stats.peak_total_bytes, text));
        for (int c = 0; c < SL_MEMORY_CATEGORY_COUNT; c++)
            used += snprintf(line + used, sizeof line - (size_t)used, " %12s",
                             cli_bytes_text((int64_t)memory->stats.peak_bytes[c], text));
        print(context, line);
    }
    if (count > MOST_DEVICES) {
        snprintf(line, sizeof line, "and %d more: --log-json has all", count - MOST_DEVICES);
        print(context, line);
    }
}
