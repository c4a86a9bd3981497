#include "parallel/link_header.h"

#include "comm/group.h"

#include <inttypes.h>

sl_status sli_link_header_check_shape(const sli_link_header *got, const char *sender)
{
    int64_t bytes = 0;
    bool is_valid =
        got->dtype >= SL_F32 && got->dtype <= SL_BF16 && got->dims >= 0 && got->dims <= SL_MAX_DIMS;
    if (is_valid)
        bytes = (int64_t)sl_dtype_bytes((sl_dtype)got->dtype);
    for (int d = 0; d < got->dims && is_valid; d++)
        is_valid = got->size[d] >= 0 && !__builtin_mul_overflow(bytes, got->size[d], &bytes);
    if (is_valid && bytes <= SLI_TRANSFER_BYTES)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s sent a tensor that no tensor can be", sender);
}

sl_status sli_link_header_check_step(const sli_link_header *got, const sli_link_step *own,
                                     const char *sender)
{
    const sli_link_step *step = &got->step;
    if (step->sequence == own->sequence && step->rows == own->rows && step->kind == own->kind &&
        step->first_micro == own->first_micro)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the ranks of a pipe call different functions or give different batches: %s "
                    "has %" PRId64 " rows in call %" PRIu64 " of kind %d, this rank %" PRId64
                    " in call %" PRIu64 " of kind %d",
                    sender, step->rows, step->sequence, step->kind, own->rows, own->sequence,
                    own->kind);
}
