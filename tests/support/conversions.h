/* Counts how often a pipe's weights are converted to bf16. */
#ifndef TESTS_SUPPORT_CONVERSIONS_H
#define TESTS_SUPPORT_CONVERSIONS_H

#include "device/device_base.h"
#include "sluice/pipe.h"

#include <stdatomic.h>

enum { CONVERSIONS_MAX_STAGES = 4, CONVERSIONS_MAX_WEIGHTS = 64 };

typedef struct conversions {
    struct conversions_device {
        sli_device_ops ops; /* first: a device points to it */
        const sli_device_ops *real;
        struct conversions *counted;
    } devices[CONVERSIONS_MAX_STAGES];
    int64_t sizes[CONVERSIONS_MAX_WEIGHTS];
    int weights; /* that the pipe has in bf16 too */
    atomic_int made;
} conversions;

/* From here on counts what the devices convert to bf16 and has as many elements as one of the
 * weights: the test chooses sizes that no activation has. Every stage has a device of its own.
 * *of must stay where it is until the devices are destroyed. */
void count_conversions(conversions *counted, const sl_pipe *pipe);

/* How many there were since the last call. */
int take_conversions(conversions *counted);

#endif
