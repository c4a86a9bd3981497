#include "core/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"avx512", "avx2", "baseline", NULL};
static const char *const debug_names[] = {"memory", "collectives", "ddp", NULL};

const sl_option sl_environment_rows[] = {
    {.name = "SL_ISA",
     .value = "NAME",
     .type = SL_OPTION_TEXT,
     .choices = isa_names,
     .help = "The instruction set of sluice's own CPU kernels; by default the best that the "
             "processor has. oneDNN's products have ONEDNN_MAX_CPU_ISA instead"},
    {.name = "SL_DEBUG",
     .value = "LIST",
     .type = SL_OPTION_TEXT,
     .choices = debug_names,
     .help = "One or more words, separated by commas. memory: device memory is filled with NaN "
             "when it is allocated and, on CPUs, when it is freed, so that a layer that reads it "
             "too early or too late gives NaN. collectives: before each operation of a group, its "
             "ranks compare what they call; a difference is an error that names it. ddp: at its "
             "end, sluice train shows the last step's gradient buckets: their sizes, when they "
             "were ready and when they were exchanged"},
    {0},
};

/* sl_option_set by the row's choices. */
static sl_status set_value(const char *name, const char *text, const char **out)
{
    const sl_option *row = sl_option_find(sl_environment_rows, name);
    return sl_error_context(sl_option_set(row, out, text), "environment variable ");
}

sl_status sli_environment_read(const char *name, const char **out)
{
    const char *text = getenv(name);
    *out = NULL;
    return text && *text ? set_value(name, text, out) : SL_OK;
}

sl_status sli_debug_contains(const char *value, bool *out)
{
    const char *text = getenv("SL_DEBUG"), *known;
    bool found = false;
    *out = false;
    while (text && *text) {
        char word[64];
        size_t length = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        SL_TRY(set_value("SL_DEBUG", word, &known));
        found |= strcmp(word, value) == 0;
        text += length + (text[length] == ',');
    }
    *out = found;
    return SL_OK;
}
