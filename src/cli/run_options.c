#include "cli/run_options.h"

#include "cli/arguments.h"

#include <string.h>

void cli_set_run(const cli_command_line *line, cli_run_options *settings)
{
    sl_train_options *train = &settings->train;
    const char *preset = cli_given(line, "preset");
    if (preset) /* one that is not known is refused with the other options */
        (void)sl_train_options_preset(preset, train);
    /* Devices or a balance override a preset's number of stages as --pp does, and devices in parts
     * its number of replicas as --dp does. */
    int preset_stages = train->stages, preset_replicas = train->replicas;
    train->stages = train->replicas = 0;
    cli_set_given(line, settings);
    if (train->stages == 0 && !train->devices && train->balance_kind != SL_BALANCE_EXPLICIT)
        train->stages = preset_stages;
    settings->preset_replicas = train->replicas == 0;
    if (settings->preset_replicas && !(train->devices && strchr(train->devices, ';')))
        train->replicas = preset_replicas;
}
