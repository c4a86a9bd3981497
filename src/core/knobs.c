#include "core/knobs.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 4 };

static const struct {
    const char *name;
    const char *values[MAX_VALUES]; /* up to the first NULL */
    const char *help;
} table[SLI_KNOB_COUNT] = {
    [SLI_KNOB_ISA] =
        {"SL_ISA",
         {"avx512", "avx2", "baseline"},
         "The instruction set of sluice's own CPU kernels; by default the best that the\n"
         "processor has. oneDNN's products have ONEDNN_MAX_CPU_ISA instead."},
    [SLI_KNOB_DEBUG] = {"SL_DEBUG",
                        {"memory", "collectives", "ddp"},
                        "One or more of these, separated by commas. memory: device memory is\n"
                        "filled with NaN when it is allocated and when it is freed, so that a\n"
                        "layer that reads it too early or too late gives NaN. collectives: before\n"
                        "each operation of a group, its ranks compare what they call; a\n"
                        "difference is an error that names it. ddp: at its end, sluice train\n"
                        "shows the last step's gradient buckets: their sizes, when they were\n"
                        "ready and when they were exchanged."},
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

/* The table's spelling of the first `length` characters of `text`; NULL if it has none. */
static const char *find_value(sli_knob knob, const char *text, size_t length)
{
    for (int i = 0; i < MAX_VALUES && table[knob].values[i]; i++)
        if (strlen(table[knob].values[i]) == length &&
            strncmp(text, table[knob].values[i], length) == 0)
            return table[knob].values[i];
    return NULL;
}

static sl_status refuse_value(sli_knob knob, const char *text)
{
    char values[128];
    join_values(knob, values, sizeof values);
    return sl_error(SL_ERR_INVALID, "environment variable %s: expected %s, got \"%s\"",
                    table[knob].name, values, text);
}

sl_status sli_knob_read(sli_knob knob, const char **out)
{
    *out = NULL;
    const char *text = getenv(table[knob].name);
    if (!text || !*text)
        return SL_OK;
    *out = find_value(knob, text, strlen(text));
    return *out ? SL_OK : refuse_value(knob, text);
}

sl_status sl_debug_contains(const char *value, bool *out)
{
    const sli_knob knob = SLI_KNOB_DEBUG;
    const char *text = getenv(table[knob].name);
    bool found = false;
    *out = false;
    for (const char *word = text; word && *word;) {
        size_t length = strcspn(word, ",");
        const char *known = find_value(knob, word, length);
        if (!known)
            return refuse_value(knob, text);
        found |= strcmp(known, value) == 0;
        word += length + (word[length] == ',');
    }
    *out = found;
    return SL_OK;
}

static void print_indented(FILE *to, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        fprintf(to, "      %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

void sl_environment_print_help(FILE *to)
{
    for (int knob = 0; knob < SLI_KNOB_COUNT; knob++) {
        char values[128];
        join_values((sli_knob)knob, values, sizeof values);
        fprintf(to, "  %s=%s\n", table[knob].name, values);
        print_indented(to, table[knob].help);
    }
}
