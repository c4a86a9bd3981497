/* Any bytes as the log of a run that sluice plan --from reads: that must end in one sentence, below
 * which a timeline that is not of a whole step is drawn, or in a layout and measures that can be
 * planned with. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"

#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool is_time(double seconds)
{
    return isfinite(seconds) && seconds >= 0;
}

static void check_run(const cli_logged_run *run)
{
    const sl_run_measures *measures = &run->measures;
    demand(run->stages >= 1 && run->stages <= SL_MAX_STAGES, "of so many stages");
    demand(run->pipeline_ranks >= 1 && run->stages % run->pipeline_ranks == 0, "of even ranks");
    demand(measures->step_seconds > 0 && isfinite(measures->step_seconds), "with a step");
    demand(is_time(measures->exchange_seconds) && is_time(measures->update_seconds), "with times");
    demand(is_time(measures->one_stage) && measures->activation_bytes >= 0, "with measures");
    demand(measures->processes >= 1 && measures->host_processes >= 0, "of processes");
    demand(measures->process_bytes >= 0 && measures->memory_bytes >= 0, "with memory");
    for (int s = 0; measures->links && s + 1 < run->stages; s++)
        demand(is_time(measures->links[s]), "with links");
    demand(run->stages == 1 || measures->forward, "with the times of stages");
    for (int s = 0; measures->forward && s < run->stages; s++)
        demand(is_time(measures->forward[s]) && is_time(measures->backward[s]), "with times");
}

static bool is_sentence(const char *text)
{
    const char *drawn = strchr(text, '\n');
    bool may_draw = strstr(text, "the trace is not of a whole step: ");
    return *text != '\0' && (!drawn || (may_draw && drawn[-1] == ':'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    cli_logged_run run;
    int file = memfd_create("log", MFD_CLOEXEC);
    demand(file >= 0 && write(file, data, bytes) == (ssize_t)bytes, "written");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    sl_status status = cli_logged_run_read(path, &run);
    if (status == SL_OK)
        check_run(&run);
    else
        demand(is_sentence(sl_error_text()), "one sentence");
    cli_logged_run_clear(&run);
    close(file);
    return 0;
}
