/* Checks of shapes that the layers share. */
#ifndef SLI_NN_SHAPE_H
#define SLI_NN_SHAPE_H

#include "sluice/module.h"

/* At least `dims` dimensions, none of them empty, the last of `width` elements. */
sl_status sli_shape_check_width(const sl_shape *in, int dims, int64_t width);

/* Slot `widths` of modules whose output has the input's width, whatever it is. */
void sli_width_kept(const sl_module *module, int64_t *in, int64_t *out);

/* Is `tensor` of that data type? `what` begins the error's text: "the input". */
sl_status sli_check_dtype(const char *what, const sl_tensor *tensor, sl_dtype dtype);

/* Is the gradient f32 and of the shape of the output that it belongs to? */
sl_status sli_check_grad(const sl_tensor *grad_out, const sl_shape *output);

/* Rows of the matrix that a shape is: all dimensions but the last. */
int64_t sli_shape_rows(const sl_shape *shape);

#endif
