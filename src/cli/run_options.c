#include "cli/run_options.h"

#include <string.h>

/* The last text of an option among those with the numbers first to end - 1, or NULL. */
static const char *find(const cli_command_line *line, int first, int end, const char *name)
{
    for (int i = end - 1; i >= first; i--)
        if (strcmp(line->given[i].option->name, name) == 0)
            return line->given[i].text;
    return NULL;
}

/* One source of options, the file or the command line: its preset first, wherever that stands.
 * Devices or a balance of numbers say how many stages there are, as --pp does, and devices in parts
 * how many replicas, as --dp does: then the numbers from before mean nothing. */
static void set_source(const cli_command_line *line, int first, int end, cli_run_options *settings)
{
    sl_train_options *train = &settings->train;
    const char *preset = find(line, first, end, "preset"),
               *devices = find(line, first, end, "devices");
    if (preset) /* one that is not known is refused with the other options */
        (void)sl_train_options_preset(preset, train);
    int stages = train->stages, replicas = train->replicas;
    train->stages = train->replicas = 0;
    cli_set_given(line, first, end, settings);
    bool balance = find(line, first, end, "balance") && train->balance_kind == SL_BALANCE_EXPLICIT;
    if (train->stages == 0 && !devices && !balance)
        train->stages = stages;
    settings->preset_replicas &= train->replicas == 0;
    if (train->replicas == 0 && !(devices && strchr(devices, ';')))
        train->replicas = replicas;
}

void cli_set_run(const cli_command_line *line, cli_run_options *settings)
{
    settings->preset_replicas = true;
    set_source(line, 0, line->config_count, settings);
    set_source(line, line->config_count, line->given_count, settings);
    cli_check_needs(line);
}
