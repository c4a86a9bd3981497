/* Whether a module's functions agree with each other: for authors of layers (docs/extending.md), as
 * PyTorch's torch.autograd.gradcheck. */
#ifndef SLUICE_MODULE_CHECK_H
#define SLUICE_MODULE_CHECK_H

#include "sluice/module.h"

SL_API_BEGIN

typedef struct sl_module_check_options {
    sl_shape input; /* of the input that is tried, rows first; a few hundred elements take
                       milliseconds, and the time grows with their square */
    int32_t ids;    /* above 0: the input is i32, of ids 0 … ids - 1, and has no gradient; 0: f32
                       in [-1, 1) */
    bool training;  /* dropout is on */
    sl_precision precision; /* BF16: also compares bf16's gradients with f32's */
    double tolerance;       /* largest distance between gradients, of the norm of the right one; 0:
                               0.005 */
    double bf16_tolerance;  /* the same between bf16's and f32's; 0: 0.05 */
    uint64_t seed;          /* of the input, of the parameters' values and of dropout */
} sl_module_check_options;

/* Runs a module on a CPU device of its own, with random values, and checks that
 *
 *   - the output has the shape of output_shape, and forward saves as many bytes as saved_bytes
 * says, where the module has these slots; backward pops all that forward saved, and leaves as many
 * as deferred_bytes says between its halves;
 *   - backward's gradients, of the input and of each trained parameter, are those of central
 *     differences of forward;
 *   - a second backward adds the same gradients again, and they do not depend on whether the
 * input's is asked for;
 *   - backward_input and then backward_weight give the bits of backward, also where another
 *     micro-batch's are between them;
 *   - no tensor is left;
 *   - in bf16 all this holds but for the differences, and the gradients are near those of f32.
 *
 * Differences see the kink of a ReLU or of a maximum where the input is within 0.001 of it.
 *
 * `module` has no parameters in a parameter set, before and after. Errors: SL_ERR_INVALID, whose
 * text says which of this does not hold ("RMSNorm: backward's gradient of weight is 0.31 of its
 * norm away from that of differences, at most 0.005 is allowed"); as sl_module_forward and
 * sl_module_backward. */
sl_status sl_module_check(sl_module *module, const sl_module_check_options *options);

SL_API_END

#endif
