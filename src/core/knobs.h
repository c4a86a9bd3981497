/* Environment variables that change how sluice runs, read when an object that they concern is
 * created. One table (knobs.c) names them, their values and their help; sl_debug_contains reads
 * SL_DEBUG. */
#ifndef SLI_CORE_KNOBS_H
#define SLI_CORE_KNOBS_H

#include "sluice/option.h"

typedef enum sli_knob {
    SLI_KNOB_ISA,   /* SL_ISA */
    SLI_KNOB_DEBUG, /* SL_DEBUG */
    SLI_KNOB_COUNT
} sli_knob;

/* Reads a variable from the environment. `*out` is its value as the table spells it, or NULL where
 * it is not set or empty. Errors: SL_ERR_INVALID names the variable, its values and what came. */
sl_status sli_knob_read(sli_knob knob, const char **out);

#endif
