/* What a link (link.h) sends before a tensor, or instead of one. */
#ifndef SLI_PARALLEL_LINK_HEADER_H
#define SLI_PARALLEL_LINK_HEADER_H

#include "parallel/link.h"

typedef enum sli_link_header_kind {
    SLI_LINK_TENSOR = 1, /* its data follow */
    SLI_LINK_FAILURE,    /* an error with this number ends the step */
    SLI_LINK_WAITS       /* the sender has waited for rank `number` for half its time; -1: it waits
                            no longer */
} sli_link_header_kind;

/* Sent as words of 32 bits. */
typedef struct sli_link_header {
    int32_t kind;
    int32_t number;
    int32_t channel, micro;
    sli_link_step step; /* the sender's */
    int32_t dtype, dims;
    int64_t size[SL_MAX_DIMS];
} sli_link_header;

/* Whether a tensor can have this type and shape, and one message can carry it. Every number is
 * checked before it is used. Errors: SL_ERR_INVALID, which names the sender. */
sl_status sli_link_header_check_shape(const sli_link_header *got, const char *sender);

/* Whether the sender runs the same step. */
sl_status sli_link_header_check_step(const sli_link_header *got, const sli_link_step *own,
                                     const char *sender);

#endif
