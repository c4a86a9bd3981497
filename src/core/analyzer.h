/* Included before every file that clang-tidy reads (.clang-tidy), and by no compiler: tells the
 * static analyzer what these functions return, which it cannot see in their callers. */
#ifndef SLI_CORE_ANALYZER_H
#define SLI_CORE_ANALYZER_H

#include "error.h"

#define sl_error(status, ...) ((void)sl_error(status, __VA_ARGS__), (status))
#define sl_error_context(status, ...)                                                              \
    __extension__({                                                                                \
        sl_status sl_context_status_ = (status);                                                   \
        (void)sl_error_context(sl_context_status_, __VA_ARGS__);                                   \
        sl_context_status_;                                                                        \
    })
#define sli_no_memory(...)       ((void)sli_no_memory(__VA_ARGS__), SL_ERR_MEMORY)
#define sli_io_error(path, what) ((void)sli_io_error(path, what), SL_ERR_IO)

#endif
