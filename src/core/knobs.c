#include "core/knobs.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 4 };

static const struct {
    const char *name;
    const char *values[MAX_VALUES]; /* up to the first NULL */
    const char *help;
} table[SLI_KNOB_COUNT] = {
    [SLI_KNOB_ISA] = {"SL_ISA",
                      {"avx512", "avx2", "baseline"},
                      "The instruction set of sluice's own CPU kernels; unset, the best one that\n"
                      "the processor has. oneDNN's products obey ONEDNN_MAX_CPU_ISA instead."},
    [SLI_KNOB_DEBUG] = {"SL_DEBUG",
                        {"memory"},
                        "memory: device memory is filled with NaN when it is handed out and when\n"
                        "it comes back, so that reading too early or too late shows."},
};

/* "avx512, avx2 or baseline" */
static void join_values(sli_knob knob, char *text, size_t size)
{
    const char *const *values = table[knob].values;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < MAX_VALUES && values[i] && used < size; i++) {
        bool last = i + 1 == MAX_VALUES || !values[i + 1];
        const char *glue = i == 0 ? "" : last ? " or " : ", ";
        used += (size_t)snprintf(text + used, size - used, "%s%s", glue, values[i]);
    }
}

sl_status sli_knob_read(sli_knob knob, const char **out)
{
    *out = NULL;
    const char *text = getenv(table[knob].name);
    if (!text || !*text)
        return SL_OK;
    for (int i = 0; i < MAX_VALUES && table[knob].values[i]; i++)
        if (strcmp(text, table[knob].values[i]) == 0) {
            *out = table[knob].values[i];
            return SL_OK;
        }
    char values[128];
    join_values(knob, values, sizeof values);
    return sl_error(SL_ERR_INVALID, "environment variable %s: expected %s, got \"%s\"",
                    table[knob].name, values, text);
}

static void print_indented(FILE *to, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        fprintf(to, "      %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

void sli_knobs_print_help(FILE *to)
{
    for (int knob = 0; knob < SLI_KNOB_COUNT; knob++) {
        char values[128];
        join_values((sli_knob)knob, values, sizeof values);
        fprintf(to, "  %s=%s\n", table[knob].name, values);
        print_indented(to, table[knob].help);
    }
}
