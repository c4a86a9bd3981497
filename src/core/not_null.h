/* For public functions: refuses a required pointer that is NULL, with a sentence that names it. */
#ifndef SLI_CORE_NOT_NULL_H
#define SLI_CORE_NOT_NULL_H

#include "sluice/status.h"

#define SLI_CHECK_NOT_NULL(pointer)                                                                \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return sl_error(SL_ERR_INVALID, "%s: %s is NULL", __func__, #pointer);                 \
    } while (0)

#endif
